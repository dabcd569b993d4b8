// SPDX-License-Identifier: Apache-2.0
// The Python extension module ivycomm_calls: collectives and messages on NumPy's arrays and torch's
// tensors in one step. `methods`, near the end of this file, lists its functions. Each one takes
// all arguments of the Python function of its name, by position. It returns NotImplemented if an
// argument is not one of the usual ones; the Python function then converts the arguments and calls
// call_library().
//
// It links neither libivycomm nor NumPy. connect() receives the library's functions, teach()
// NumPy's and teach_torch() torch's; comm/python/ivycomm/calls.py calls them.
//
// Thread: any that is attached to the interpreter. A call releases the interpreter's lock while it
// waits. Nothing here relies on that lock, which free-threaded builds do not have.
#include "comm/python/extension/arguments.h"
#include "comm/python/extension/array_list.h"
#include "comm/python/extension/array_view.h"
#include "comm/python/extension/interrupts.h"
#include "comm/python/extension/library.h"
#include "comm/python/extension/message_calls.h"
#include "comm/python/extension/more_calls.h"
#include "comm/python/extension/plain_calls.h"
#include "comm/python/extension/python.h"
#include "comm/python/extension/seats.h"

namespace ivy::python {
namespace {

// Takes x, src, group, async_op and timeout.
PyObject* broadcast_in_place(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if (count != 5 || !are_usual(given[3], given[4])) return not_usual();
  const Seat seat(given[2]);
  const int root = small_number(given[1]);
  if (!seat || root < 0 || root >= seat.size) return not_usual();
  ArrayView array;
  if (!array.take_any(given[0], kBufferWritable)) return not_usual();
  const auto call = [&](const ivy_call* how) {
    return library.broadcast(seat.comm, array.data(), array.count(), array.dtype(), root, how);
  };
  return carry_out(call, array.memory()) && mark_changed(given[0]) ? new_reference(given[0])
                                                                   : nullptr;
}

// Takes x, axis, uneven, group, out, async_op and timeout.
PyObject* all_gather(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if (count != 7 || !are_usual(given[5], given[6])) return not_usual();
  if (small_number(given[1]) != 0 || given[2] != Py_False || given[4] != Py_None) {
    return not_usual();
  }
  const Seat seat(given[3]);
  ArrayView input;
  if (!seat || !input.take_with_rows(given[0], 0)) return not_usual();
  const Py_ssize_t rows = input.rows_or_one() * seat.size;
  Result result;
  if (!result.make(empty_of_rows(given[0], input, rows))) return not_usual();
  const auto call = [&](const ivy_call* how) {
    return library.all_gather(seat.comm, input.data(), result.view.data(), input.count(),
                              input.dtype(), how);
  };
  return carry_out(call, input.memory()) ? result.give() : nullptr;
}

// Takes x, op, split, group, out, async_op, timeout and factor.
PyObject* reduce_scatter(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if (count != 8 || !are_usual(given[5], given[6]) || !is_one(given[7])) return not_usual();
  if (given[2] != Py_None || given[4] != Py_None) return not_usual();
  const Seat seat(given[3]);
  const int op = reduction_of(given[1]);
  ArrayView input;
  if (!seat || op < 0 || !input.take_with_rows(given[0], 0)) return not_usual();
  if (!is_divisible(input, seat)) return not_usual();
  Result result;
  if (!result.make(empty_of_rows(given[0], input, input.rows() / seat.size))) {
    return not_usual();
  }
  const auto call = [&](const ivy_call* how) {
    return library.reduce_scatter(seat.comm, input.data(), result.view.data(), result.view.count(),
                                  input.dtype(), op, how);
  };
  return carry_out(call, input.memory()) ? result.give() : nullptr;
}

// Takes xs, op, group, async_op, timeout, factor and whether it works in place.
PyObject* all_reduce_coalesced(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if (count != 7 || !are_usual(given[3], given[4]) || !is_one(given[5])) return not_usual();
  const Seat seat(given[2]);
  const int op = reduction_of(given[1]);
  if (!seat || op < 0 || !PyList_CheckExact(given[0])) return not_usual();
  ArrayList arrays;
  if (!arrays.take(given[0], given[6] == Py_True)) return not_usual();
  const auto call = [&](const ivy_call* how) {
    return library.all_reduce_coalesced(seat.comm, arrays.count(), arrays.sends(),
                                        arrays.receives(), arrays.counts(), arrays.dtype(), op,
                                        how);
  };
  return carry_out(call, arrays.memory()) && arrays.mark_all_changed()
             ? new_reference(arrays.results())
             : nullptr;
}

// Takes group, async_op and timeout.
PyObject* barrier(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if (count != 3 || !are_usual(given[1], given[2])) return not_usual();
  const Seat seat(given[0]);
  if (!seat) return not_usual();
  const auto call = [&](const ivy_call* how) { return library.barrier(seat.comm, how); };
  return carry_out(call) ? new_reference(Py_None) : nullptr;
}

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
  usual_reduction = PyUnicode_InternFromString("sum");
  return new_reference(Py_None);
}

PyMethodDef methods[] = {
    {"connect", connect, METH_VARARGS, "connect(address_of, reductions, ReduceOp, raise_error)"},
    {"teach", teach, METH_VARARGS, "teach(ndarray, empty, empty_like): NumPy is imported"},
    {"teach_torch", teach_torch, METH_VARARGS,
     "teach_torch(Tensor, strided, dtypes, empty_like, increment_version, current_stream): torch "
     "is "
     "imported"},
    {"seat", make_seat, METH_VARARGS, "seat(communicator, rank, size): the state of a Group"},
    {"begin_world", begin_world, METH_VARARGS, "begin_world(seat, main_thread)"},
    {"end_world", end_world, METH_NOARGS,
     "end_world(): closes every seat unless calls are in progress; returns their number"},
    {"close", close_seat, METH_O,
     "close(seat): later calls cannot enter it; False if it was already closed"},
    {"inside", count_inside, METH_O,
     "inside(seat): number of threads inside a call on it; None: on any seat"},
    {"call_library", fast(call_library), kMethodFastCall,
     "call_library(name, arguments, timeout_ms, factor, stream, work): any operation of the C "
     "interface"},
// all_reduce, all_reduce_, scan, scan_, exscan and exscan_.
#define IVY_COMBINING(function, ...)                                         \
  {#function, fast(combined<&Library::function>), kMethodFastCall, nullptr}, \
      {#function "_", fast(combined_in_place<&Library::function>), kMethodFastCall, nullptr},
#include "proto/wire/operations.def"
    {"all_reduce_coalesced", fast(all_reduce_coalesced), kMethodFastCall, nullptr},
    {"broadcast_", fast(broadcast_in_place), kMethodFastCall, nullptr},
    {"all_gather", fast(all_gather), kMethodFastCall, nullptr},
    {"reduce_scatter", fast(reduce_scatter), kMethodFastCall, nullptr},
    {"barrier", fast(barrier), kMethodFastCall, nullptr},
    {"broadcast", fast(broadcast), kMethodFastCall, nullptr},
    {"reduce", fast(reduce), kMethodFastCall, nullptr},
    {"reduce_", fast(reduce_in_place), kMethodFastCall, nullptr},
    {"gather", fast(gather), kMethodFastCall, nullptr},
    {"all_gather_", fast(all_gather_in_place), kMethodFastCall, nullptr},
    {"all_to_all", fast(all_to_all), kMethodFastCall, nullptr},
    {"all_to_all_", fast(all_to_all_in_place), kMethodFastCall, nullptr},
    {"send", fast(send), kMethodFastCall, nullptr},
    {"recv", fast(recv), kMethodFastCall, nullptr},
    {"recv_", fast(recv_in_place), kMethodFastCall, nullptr},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                          "ivycomm_calls",
                          nullptr,
                          -1,
                          methods,
                          nullptr,
                          nullptr,
                          nullptr,
                          nullptr};

// Adds OPERATIONS: the names of the functions that take a call's arguments, in contrast to those
// that manage the extension.
bool add_operations(PyObject* module) {
  PyObject* const names = PyList_New(0);
  bool is_made = names != nullptr;
  for (const PyMethodDef* method = methods; is_made && method->ml_name != nullptr; ++method) {
    if (method->ml_flags != kMethodFastCall) continue;
    PyObject* const name = PyUnicode_FromString(method->ml_name);
    is_made = name != nullptr && PyList_Append(names, name) == 0;
    Py_XDECREF(name);
  }
  is_made = is_made && PyObject_SetAttrString(module, "OPERATIONS", names) == 0;
  Py_XDECREF(names);
  return is_made;
}

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
  name_of_seat = PyUnicode_InternFromString("_seat");
  if (name_of_seat == nullptr || !add_operations(module) ||
      PyModule_AddIntConstant(module, "INTERFACE", kInterface) != 0) {
    Py_DECREF(module);
    return nullptr;
  }
  return module;
}
