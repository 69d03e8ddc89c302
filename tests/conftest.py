import pytest
import torch


@pytest.fixture(autouse=True)
def _reproducible():
    torch.manual_seed(0)
