# SPDX-License-Identifier: Apache-2.0
"""Calls of the Python package through its extension."""

import os
import re
import subprocess

import pytest

from launching import BIN, REPOSITORY

has_numpy = os.path.isdir("/usr/lib/python3/dist-packages/numpy")
pytestmark = pytest.mark.skipif(not has_numpy, reason="python3-numpy is not installed")

CALM = ("-x", "OMP_NUM_THREADS=1")
LIMIT = 90
TORCH = os.path.join(REPOSITORY, "build/torch/bin/python3")
HOSTS = ("--fake-hosts", "2", "--nproc_per_node", "1")


def check(local, scenario, *flags):
    done = local.run(*flags, *CALM, local.script("comm_calls.py"), scenario, limit=LIMIT)
    assert done.code == 0, done
    said = done.texts_by_rank()
    assert said and all(lines[-1] == "went on" for lines in said.values()), done


@pytest.mark.parametrize("scenario", ["same_results", "unusual_arguments", "threads", "handler_runs",
                                      "interrupted_calls", "plain_calls", "changed_lists", "freed_groups",
                                      "arrays_without_bytes", "late_interrupts",
                                      pytest.param("late_interrupts_at_every_moment", marks=pytest.mark.long)])
def test_calls(local, scenario):
    check(local, scenario, "-n", "3" if scenario == "unusual_arguments" else "2")


@pytest.mark.skipif(not os.path.exists(TORCH), reason="build/torch has no torch: scripts/setup torch")
@pytest.mark.parametrize("scenario", ["tensors", "changed_lists", "emptied_list"])
def test_calls_on_tensors(local, scenario):
    check(local, scenario, "-n", "2", "--python", TORCH)


def test_ctrl_c_at_random_moments(local):
    check(local, "drill", "-n", "2")


def test_ctrl_c_between_hosts(local):
    check(local, "interrupted_barriers", *HOSTS)


EXTENSION = os.path.join(os.path.dirname(BIN), "lib/ivyrun/ivycomm_calls.abi3.so")


# Functions and objects of CPython 3.9 that the extension uses. Add a new one only if CPython 3.9 exports it.
OF_PYTHON_3_9 = set("""
_PyArg_ParseTuple_SizeT PyBool_FromLong PyBuffer_Release PyBytes_AsStringAndSize PyBytes_FromString
PyBytes_FromStringAndSize PyCapsule_GetPointer PyCapsule_IsValid PyCapsule_New PyCapsule_SetName PyErr_CheckSignals
PyErr_Clear PyErr_Fetch PyErr_Format PyErr_NoMemory PyErr_Occurred PyErr_Restore PyEval_RestoreThread
PyEval_SaveThread PyExc_ImportError PyExc_OSError PyExc_OverflowError PyExc_RuntimeError PyExc_TypeError
PyExc_ValueError PyFloat_AsDouble PyFloat_FromDouble PyFloat_Type PyGILState_Ensure PyGILState_Release PyList_AsTuple
PyList_New PyList_SetItem PyList_Type PyLong_AsLong PyLong_AsLongAndOverflow PyLong_AsLongLong PyLong_AsSsize_t
PyLong_AsUnsignedLongLong PyLong_AsVoidPtr PyLong_FromLong PyLong_FromLongLong PyLong_FromSsize_t
PyLong_FromUnsignedLongLong PyLong_Type PyMem_Calloc PyMem_Free PyMem_Malloc PyModule_AddFunctions
PyModule_AddIntConstant PyModule_Create2 PyObject_CallFunctionObjArgs PyObject_CallMethodObjArgs PyObject_GetAttr
PyObject_GetAttrString PyObject_GetBuffer PyObject_GetItem PySequence_List PyThread_get_thread_ident PyTuple_GetItem
PyTuple_New PyTuple_SetItem PyTuple_Size PyType_GetFlags PyUnicode_InternFromString PyUnicode_Type
_Py_BuildValue_SizeT _Py_Dealloc _Py_FalseStruct Py_IsInitialized _Py_NoneStruct _Py_NotImplementedStruct
_Py_TrueStruct
""".split())


def test_the_extension_loads_into_cpython_3_9():
    done = subprocess.run(["nm", "-D", "--undefined-only", EXTENSION], capture_output=True, text=True, check=True)
    needed = set(re.findall(r"U (_?Py\w+)", done.stdout))
    assert needed and needed <= OF_PYTHON_3_9, needed - OF_PYTHON_3_9


def test_a_missing_extension_is_one_clear_error(local):
    """libivycomm is in a directory without the extension."""
    os.symlink(os.path.realpath(os.path.join(os.path.dirname(BIN), "lib/libivycomm.so.1")),
               os.path.join(local.directory, "libivycomm.so.1"))
    package = os.path.join(local.directory, "package")
    os.mkdir(package)
    os.symlink(os.path.join(REPOSITORY, "comm/python/ivycomm"), os.path.join(package, "ivycomm"))
    done = local.run_program("/usr/bin/python3", "-B", "-c", "import sys, os; from ivycomm import library\n"
                             "library.places = lambda: [os.environ['PLACE']]\n"
                             "import ivycomm\n"
                             "ivycomm.init()", env={"PYTHONPATH": package, "PLACE": local.directory})
    assert done.code == 1 and "ivycomm's extension ivycomm_calls.abi3.so is missing" in done.err_text, done
    assert "reinstall ivycomm" in done.err_text, done
