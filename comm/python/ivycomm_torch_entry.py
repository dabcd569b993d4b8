# SPDX-License-Identifier: Apache-2.0
"""How torch finds the backend "ivy" where nothing was imported: the entry points of ivycomm_entry_points.dist-info.

torch 2.14 and newer calls `register` when the name is first used. torch 2.5 and newer calls `autoload` at the end of
every `import torch`, which it must neither break nor slow down.
"""


def register():
    """Registers the backend in torch. A second call changes nothing."""
    from ivycomm.torch.backend import registration

    registration.register()


def autoload():
    """Calls register() for versions of torch that do not call it themselves."""
    import torch

    if tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2]) >= (2, 14):
        return
    try:
        if torch.distributed.is_available():
            register()
    except Exception as error:  # noqa: BLE001 - the program may not need the backend.
        import warnings

        warnings.warn(f"torch's backend ivy could not be registered: {error}", stacklevel=2)
