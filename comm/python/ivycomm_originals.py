"""Serves `import ivy.distributed` and `import neurenix` in every Python where the package is installed.

ivycomm_originals.pth imports this module when Python starts, so it imports nothing: the finder that it puts behind all
others loads ivycomm when a program asks for one of the names.
"""

import sys


class _Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name not in ("ivy", "ivy.distributed", "neurenix"):
            return None
        # Packages that are installed to be edited have finders of their own, which may have come later.
        for finder in sys.meta_path[sys.meta_path.index(_Finder) + 1:]:
            spec = finder.find_spec(name, path, target) if hasattr(finder, "find_spec") else None
            if spec is not None:
                return spec
        from ivycomm import originals
        return originals.find(name)


if _Finder not in sys.meta_path:
    sys.meta_path.append(_Finder)
