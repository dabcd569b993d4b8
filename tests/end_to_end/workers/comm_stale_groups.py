"""Groups that outlive their world: every call on one raises NotInitialized, and free() does nothing. Prints "all refused"."""

import ivycomm as ic
from ivycomm import i_dist


def make_groups():
    everybody = list(range(ic.world_size()))
    return [ic.world(), ic.new_group(everybody), ic.split(0), ic.mesh((ic.world_size(),)).group(0),
            i_dist.Group(everybody), ic.split(0, group=ic.split(0))]


def check_refused(groups):
    for group in groups:
        for call in (lambda: ic.barrier(group=group), lambda: ic.all_gather_object(1, group=group), group.abort,
                     lambda: ic.split(0, group=group), lambda: ic.new_group([0], group=group)):
            try:
                call()
            except ic.NotInitialized as error:
                assert "finalized" in str(error), error
            else:
                raise AssertionError(f"{group!r} was not refused")
        group.free()
        group.free()


def main():
    ic.init()
    former = make_groups()
    freed = ic.split(0)
    freed.free()
    check_refused([freed])
    ic.finalize()
    check_refused(former)
    ic.init()
    check_refused(former)
    for group in make_groups():
        ic.barrier(group=group)
    ic.finalize()
    check_refused(former)
    print("all refused")


main()
