"""Gradients that are trees of arrays, averaged over the ranks."""

from .. import collectives, trees


def average_gradients(gradients, samples=None, *, group=None):
    """The mean over all ranks of a tree of arrays, which all ranks' gradients have the form of.

    samples: how many this rank's gradients are the mean of; the ranks count by it. None: every rank counts the same.
    The arrays may be any framework's; arrays of one type travel as one operation.
    """
    if samples is None:
        return collectives.all_reduce(gradients, "avg", group=group)
    import numpy
    total = float(collectives.all_reduce(numpy.array([float(samples)]), group=group)[0])
    if total <= 0:
        raise ValueError("the ranks have no samples at all")
    weighted = trees.rebuilt(gradients, iter([leaf * (samples / total) for leaf in trees.leaves_of(gradients)]))
    return collectives.all_reduce(weighted, "sum", group=group)
