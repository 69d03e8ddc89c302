"""`python fsdp_on_cpu.py SCRIPT ARGUMENTS...`: the script with accelerate's FSDP2, also on processors.

accelerate 1.15 has FSDP for accelerators alone and takes plain DDP on processors, although torch's FSDP2 works there. So
the choice of it is made here; everything after is accelerate's own.
"""

import runpy
import sys

from accelerate import DistributedType
from accelerate.state import AcceleratorState, PartialState

from vanilla_transformer.trainer import sharding

ordinary = AcceleratorState.__init__


def with_fsdp(self, *args, fsdp_plugin=None, **kwargs):
    ordinary(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
    if fsdp_plugin is not None:
        self.distributed_type = PartialState._shared_state["distributed_type"] = DistributedType.FSDP
        self.fsdp_plugin = fsdp_plugin


AcceleratorState.__init__ = with_fsdp
sharding.check_device = lambda device: None
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
