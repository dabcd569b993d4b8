# SPDX-License-Identifier: Apache-2.0
"""One rank of mpi4py's own test suite under any launcher: writes the result of each test to FOLDER/RANK.

mpi4py_suite_rank.py FOLDER .../mpi4py-VERSION/test/main.py [ARGUMENTS OF main.py]
"""

import os
import runpy
import sys
import unittest

from mpi4py import MPI

FOLDER, MAIN = sys.argv[1:3]
sys.argv = [MAIN, *sys.argv[3:]]
NOTES = open(os.path.join(FOLDER, str(MPI.COMM_WORLD.Get_rank())), "w", buffering=1)
NOTES.write(f"world {MPI.COMM_WORLD.Get_size()}\n")


class Noted(unittest.TextTestResult):
    """Writes results. If a test hangs, its `begin` is the last line."""

    @staticmethod
    def note(what, test):
        NOTES.write(f"{what} {test.id() if hasattr(test, 'id') else test}\n")

    def startTest(self, test):
        self.note("begin", test)
        super().startTest(test)

    def addSuccess(self, test):
        self.note("ok", test)
        super().addSuccess(test)

    def addSkip(self, test, reason):
        self.note("skip", test)
        super().addSkip(test, reason)

    def addFailure(self, test, error):
        self.note("fail", test)
        super().addFailure(test, error)

    def addError(self, test, error):
        self.note("fail", test)
        super().addError(test, error)

    def addSubTest(self, test, subtest, error):
        if error is not None:
            self.note("fail", test)
        super().addSubTest(test, subtest, error)


unittest.TextTestRunner.resultclass = Noted
runpy.run_path(MAIN, run_name="__main__")
