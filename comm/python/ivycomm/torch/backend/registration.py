# SPDX-License-Identifier: Apache-2.0
"""Registers the backend with torch. The rest of the backend is imported when the first process group is created."""

from __future__ import annotations

from typing import Any


def _create(opts: Any, options: Any = None) -> Any:
    from .process_group import create

    return create(opts, options)


def register() -> None:
    """Registers the backend "ivy" of torch.distributed.init_process_group(). `import ivycomm.torch` calls it. Does nothing
    the second time, and in a torch that was built without torch.distributed."""
    import torch
    import torch.distributed as dist

    if not dist.is_available() or "IVY" in dist.Backend._plugins:
        return
    # Before torch 2.0 there is no parameter `devices`.
    knows_devices = int(torch.__version__.split(".")[0]) >= 2
    dist.Backend.register_backend("ivy", _create, extended_api=True,
                                  **({"devices": ["cpu", "cuda"]} if knows_devices else {}))
