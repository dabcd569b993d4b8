// SPDX-License-Identifier: Apache-2.0
// The Python extension module ivycomm_calls, through which the package calls libivycomm. It has two
// kinds of functions for it:
//
// - a method for each function of the C interface, under its name, such as ivy_store_add
//   (methods.h);
// - collectives and messages on NumPy's arrays and torch's tensors in one step, such as all_reduce
//   (collective_calls.h, message_calls.h). Each takes all arguments of the Python function of its
//   name, by position. It returns NotImplemented if an argument is not one of the usual ones; the
//   Python function then prepares the arguments and calls the method of the C function.
//
// `module_methods` lists the other functions of the module. It links neither libivycomm nor NumPy:
// open_library() loads the former, and load_numpy() and load_torch() receive NumPy's and torch's
// functions.
//
// Thread: any that is attached to the interpreter. A call releases the interpreter's lock while it
// waits. Nothing here relies on that lock, which free-threaded builds do not have.
#include "comm/python/extension/arguments.h"
#include "comm/python/extension/array_view.h"
#include "comm/python/extension/collective_calls.h"
#include "comm/python/extension/dlpack.h"
#include "comm/python/extension/group_handles.h"
#include "comm/python/extension/interrupts.h"
#include "comm/python/extension/library.h"
#include "comm/python/extension/message_calls.h"
#include "comm/python/extension/methods.h"
#include "comm/python/extension/python.h"

namespace ivy::python {
namespace {

// Takes the numbers of the reductions by name and by member of ReduceOp, the type ReduceOp, and a
// function that raises the exception for a code or for kGroupEnded.
PyObject* connect(PyObject*, PyObject* arguments) {
  PyObject* reductions = nullptr;
  PyObject* raise = nullptr;
  PyObject* type = nullptr;
  if (PyArg_ParseTuple(arguments, "OOO", &reductions, &type, &raise) == 0) return nullptr;
  reduction_numbers = new_reference(reductions);
  reduction_type = new_reference(type);
  raise_error = new_reference(raise);
  default_reduction = PyUnicode_InternFromString("sum");
  return new_reference(Py_None);
}

// Implements copy_memory(to, from, bytes). The addresses must not overlap.
PyObject* copy_memory(PyObject*, PyObject* const* given, Py_ssize_t count) {
  Argument<void*> to;
  Argument<const void*> from;
  Argument<std::size_t> bytes;
  if (count != 3 || !to.take(given, 1) || !from.take(given + 1, 1) || !bytes.take(given + 2, 1)) {
    return nullptr;
  }
  if (bytes.value > 0) std::memcpy(to.pass(), from.pass(), bytes.value);
  return new_reference(Py_None);
}

// Implements call_inside(handle, function): returns function(), which counts as a call on that
// handle.
PyObject* call_inside(PyObject*, PyObject* const* given, Py_ssize_t count) {
  Argument<ivy_comm*> group;
  if (count != 2 || !group.take(given, 1)) return nullptr;
  return PyObject_CallFunctionObjArgs(given[1], nullptr);
}

PyMethodDef module_methods[] = {
    {"open_library", open_library, METH_VARARGS, "open_library(path): loads libivycomm"},
    {"connect", connect, METH_VARARGS, "connect(reductions, ReduceOp, raise_error)"},
    {"call_inside", fast(call_inside), kMethodFastCall,
     "call_inside(handle, function): function(), as a call on the group"},
    {"take_dlpack", take_dlpack, METH_O, "take_dlpack(capsule): the exported memory"},
    {"release_dlpack", release_dlpack, METH_O, "release_dlpack(owner): before the owner's end"},
    {"make_dlpack", make_dlpack, METH_VARARGS,
     "make_dlpack(address, shape, strides, code, bits, device_type, device, owner): a capsule"},
    {"copy_memory", fast(copy_memory), kMethodFastCall, "copy_memory(to, from, bytes)"},
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
#define IVY_METHOD(function, is_code, ...) \
  {"ivy_" #function, fast(method<__VA_ARGS__, is_code>), kMethodFastCall, nullptr},
#define IVY_CALL(function) IVY_METHOD(function, true, &Library::function)
#define IVY_QUERY(function) IVY_METHOD(function, false, &Library::function)
    IVY_CALL_LIST(IVY_CALL, IVY_QUERY)
#define IVY_FUNCTION(function, ...) IVY_CALL(function)
#include "proto/wire/operations.def"
        IVY_METHOD(store_get, true, store_get)
            IVY_METHOD(store_multi_get, true, store_multi_get){nullptr, nullptr, 0, nullptr}};

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
