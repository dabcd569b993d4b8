// SPDX-License-Identifier: Apache-2.0
// The Python extension module ivycomm_calls: collectives and messages on NumPy's arrays and torch's
// tensors in one step (collective_calls.h, message_calls.h). Each of their functions takes all
// arguments of the Python function of its name, by position. It returns NotImplemented if an
// argument is not one of the usual ones; the Python function then converts the arguments and calls
// call_library(). `module_methods` lists the other functions of the module.
//
// It links neither libivycomm nor NumPy. connect() receives the library's functions, load_numpy()
// NumPy's and load_torch() torch's; comm/python/ivycomm/calls.py calls them.
//
// Thread: any that is attached to the interpreter. A call releases the interpreter's lock while it
// waits. Nothing here relies on that lock, which free-threaded builds do not have.
#include "comm/python/extension/arguments.h"
#include "comm/python/extension/array_view.h"
#include "comm/python/extension/collective_calls.h"
#include "comm/python/extension/fallback_calls.h"
#include "comm/python/extension/group_handles.h"
#include "comm/python/extension/interrupts.h"
#include "comm/python/extension/library.h"
#include "comm/python/extension/message_calls.h"
#include "comm/python/extension/python.h"

namespace ivy::python {
namespace {

// Takes a function that maps the names of the library's functions to their addresses, the numbers
// of the reductions by name and by member of ReduceOp, the type ReduceOp, and a function that
// raises the exception for a code.
PyObject* connect(PyObject*, PyObject* arguments) {
  PyObject* address_of = nullptr;
  PyObject* reductions = nullptr;
  PyObject* raise = nullptr;
  PyObject* type = nullptr;
  if (PyArg_ParseTuple(arguments, "OOOO", &address_of, &reductions, &type, &raise) == 0) {
    return nullptr;
  }
  if (!library.take(address_of)) return nullptr;
  reduction_numbers = new_reference(reductions);
  reduction_type = new_reference(type);
  raise_error = new_reference(raise);
  default_reduction = PyUnicode_InternFromString("sum");
  return new_reference(Py_None);
}

PyMethodDef module_methods[] = {
    {"connect", connect, METH_VARARGS, "connect(address_of, reductions, ReduceOp, raise_error)"},
    {"load_numpy", load_numpy, METH_VARARGS,
     "load_numpy(ndarray, empty, empty_like): NumPy is imported"},
    {"load_torch", load_torch, METH_VARARGS,
     "load_torch(Tensor, strided, dtypes, empty_like, increment_version, current_stream): torch is "
     "imported"},
    {"group_handle", make_handle, METH_VARARGS,
     "group_handle(communicator, rank, size): the state of a Group"},
    {"begin_world", begin_world, METH_VARARGS, "begin_world(handle, main_thread)"},
    {"end_world", end_world, METH_NOARGS,
     "end_world(): closes every handle unless calls are in progress; returns their number"},
    {"close", close_handle, METH_O,
     "close(handle): later calls cannot enter it; False if it was already closed"},
    {"inside", count_inside, METH_O,
     "inside(handle): number of threads inside a call on it; None: on any handle"},
    {"call_library", fast(call_library), kMethodFastCall,
     "call_library(name, arguments, timeout_ms, factor, stream, work): any operation of the C "
     "interface"},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                          "ivycomm_calls",
                          nullptr,
                          -1,
                          module_methods,
                          nullptr,
                          nullptr,
                          nullptr,
                          nullptr};

}  // namespace
}  // namespace ivy::python

PyMODINIT_FUNC PyInit_ivycomm_calls() {
  using namespace ivy::python;
  PyObject* const module = PyModule_Create(&definition);
  if (module == nullptr) return nullptr;
#ifdef Py_GIL_DISABLED
  // Without this declaration, the interpreter would enable its global lock again, for the whole
  // process.
  PyUnstable_Module_SetGIL(module, Py_MOD_GIL_NOT_USED);
#endif
  handle_attribute = PyUnicode_InternFromString("_group_handle");
  if (handle_attribute == nullptr || PyModule_AddFunctions(module, collective_methods) != 0 ||
      PyModule_AddFunctions(module, message_methods) != 0 ||
      PyModule_AddIntConstant(module, "INTERFACE", kInterface) != 0) {
    Py_DECREF(module);
    return nullptr;
  }
  return module;
}
