"""ivycomm for torch. Importing it makes torch.distributed's backend "ivy" known to every torch from 1.13 on."""

from .torch_backend.registration import register
from .torch_reconfigure import reconfigure, rendezvous_reconfigure

register()

__all__ = ["reconfigure", "register", "rendezvous_reconfigure"]
