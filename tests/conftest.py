import gc
import os
import textwrap
from pathlib import Path

import pytest
import torch

from hub_server import HubServer
from warm_python import WarmPython

ROOT = Path(__file__).parents[1]

# A disk takes milliseconds for each file that is to outlive a loss of power, and there are tens of thousands of them.
os.fsync = lambda descriptor: None

# So many seconds, 5 of them, a loader waits for workers where the garbage collection has taken away what calls them.
torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL = 0.1


@pytest.fixture(autouse=True, scope="module")
def _small_heap():
    """Take all that is there already out of garbage collection.

    Each Trainer asks for a collection when it ends; over the modules and tests of a whole session one takes over a second.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _reproducible():
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def server():
    with HubServer() as hub:
        yield hub


@pytest.fixture(scope="session")
def environment(server, tmp_path_factory):
    return {
        **os.environ,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}",
        "HF_ENDPOINT": server.url,
        "HF_TOKEN": server.TOKEN,
        "HF_HOME": str(tmp_path_factory.mktemp("home")),
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        # a service elsewhere, that would be asked for what a repository lacks
        "DISABLE_SAFETENSORS_CONVERSION": "1",
        "HF_XET_CLIENT_RETRY_BASE_DELAY": "1ms",
        "HF_XET_CLIENT_RETRY_MAX_ATTEMPTS": "3",
    }


@pytest.fixture(scope="session")
def python(environment):
    """A Python that starts at once, with a Hub."""
    with WarmPython(environment) as python:
        yield python


@pytest.fixture(scope="session")
def snippets(python):
    return lambda code, **options: python.run(
        "import os, sys, torch, transformers\n" + textwrap.dedent(code), **options
    )
