// SPDX-License-Identifier: Apache-2.0
// The collectives. Each function handles the usual arguments of the Python function of its name,
// and returns NotImplemented for others. `collective_methods`, at the end, lists them.
//
// Thread: any that is attached to the interpreter. A call releases the interpreter's lock while it
// waits.
#pragma once

#include <cstring>

#include "comm/python/extension/arguments.h"
#include "comm/python/extension/array_list.h"
#include "comm/python/extension/array_view.h"
#include "comm/python/extension/group_handles.h"
#include "comm/python/extension/interrupts.h"
#include "comm/python/extension/library.h"

namespace ivy::python {

// Returns a rank of the group, or -1 if it is not one: the Python function then raises the error.
inline int root_of(PyObject* given, const GroupCall& handle) {
  const int root = small_number(given);
  return handle && root < handle.size ? root : -1;
}

// Returns whether the array's rows can be divided equally among the group's ranks.
inline bool is_divisible(const ArrayView& array, const GroupCall& handle) {
  return array.rows() != kNoAxis && array.rows() % handle.size == 0;
}

// Takes x, src, group, out, async_op and timeout.
inline PyObject* broadcast(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if (count != 6 || !are_default(given[4], given[5]) || given[3] != Py_None)
    return not_implemented();
  const GroupCall handle(given[2]);
  const int root = root_of(given[1], handle);
  ArrayView input;
  if (root < 0 || !input.take(given[0], 0)) return not_implemented();
  Result result;
  if (!result.make(empty_like(given[0]))) return not_implemented();
  const auto call = [&](const ivy_call* how) {
    if (handle.rank == root && input.bytes() > 0)
      std::memcpy(result.view.data(), input.data(), input.bytes());
    return library.broadcast(handle.comm, result.view.data(), input.count(), input.dtype(), root,
                             how);
  };
  return call_without_lock(call) ? result.give() : nullptr;
}

// Takes x, src, group, async_op and timeout.
inline PyObject* broadcast_in_place(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if (count != 5 || !are_default(given[3], given[4])) return not_implemented();
  const GroupCall handle(given[2]);
  const int root = small_number(given[1]);
  if (!handle || root < 0 || root >= handle.size) return not_implemented();
  ArrayView array;
  if (!array.take_any(given[0], kBufferWritable)) return not_implemented();
  const auto call = [&](const ivy_call* how) {
    return library.broadcast(handle.comm, array.data(), array.count(), array.dtype(), root, how);
  };
  return call_without_lock(call, array.memory()) && mark_changed(given[0]) ? new_reference(given[0])
                                                                           : nullptr;
}

// Takes x, dst, op, group, out, async_op, timeout and factor.
inline PyObject* reduce(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if (count != 8 || !are_default(given[5], given[6]) || !is_one(given[7])) return not_implemented();
  const GroupCall handle(given[3]);
  const int op = reduction_of(given[2]);
  const int root = root_of(given[1], handle);
  ArrayView input;
  if (root < 0 || op < 0 || given[4] != Py_None || !input.take_any(given[0], 0))
    return not_implemented();
  const bool is_root = handle.rank == root;
  Result result;
  if (is_root && !result.make(empty_like(given[0]))) return not_implemented();
  const auto call = [&](const ivy_call* how) {
    return library.reduce(handle.comm, input.data(), is_root ? result.view.data() : nullptr,
                          input.count(), input.dtype(), op, root, how);
  };
  if (!call_without_lock(call, input.memory())) return nullptr;
  return is_root ? result.give() : new_reference(Py_None);
}

// Takes x, dst, op, group, async_op, timeout and factor.
inline PyObject* reduce_in_place(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if (count != 7 || !are_default(given[4], given[5]) || !is_one(given[6])) return not_implemented();
  const GroupCall handle(given[3]);
  const int op = reduction_of(given[2]);
  const int root = root_of(given[1], handle);
  ArrayView array;
  if (root < 0 || op < 0 || !array.take_any(given[0], kBufferWritable)) return not_implemented();
  const bool is_root = handle.rank == root;
  const auto call = [&](const ivy_call* how) {
    return library.reduce(handle.comm, is_root ? IVY_IN_PLACE : array.data(),
                          is_root ? array.data() : nullptr, array.count(), array.dtype(), op, root,
                          how);
  };
  if (!call_without_lock(call, array.memory()) || (is_root && !mark_changed(given[0])))
    return nullptr;
  return new_reference(given[0]);
}

// all_reduce, scan and exscan, whose result is as long as x. Function is the library's function:
// combined<&Library::all_reduce> calls ivy_all_reduce. Takes x, op, group, out, async_op, timeout
// and factor.
template <auto Function>
PyObject* combined(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if (count != 7 || !are_default(given[4], given[5]) || !is_one(given[6])) return not_implemented();
  const GroupCall handle(given[2]);
  const int op = reduction_of(given[1]);
  ArrayView input;
  if (!handle || op < 0 || !input.take_any(given[0], 0)) return not_implemented();
  Result result;
  PyObject* const out = given[3];
  if (out != Py_None && (is_tensor(given[0]) || is_tensor(out))) return not_implemented();
  if (!result.make(out == Py_None ? empty_like(given[0]) : new_reference(out)))
    return not_implemented();
  const bool is_in_place = out != Py_None && result.view.data() == input.data();
  if (out != Py_None && !result.view.can_take(input, is_in_place)) return not_implemented();
  const void* const send = is_in_place ? IVY_IN_PLACE : input.data();
  const auto call = [&](const ivy_call* how) {
    return (library.*Function)(handle.comm, send, result.view.data(), input.count(), input.dtype(),
                               op, how);
  };
  return call_without_lock(call, input.memory()) ? result.give() : nullptr;
}

// all_reduce_, scan_ and exscan_, as combined(). Takes x, op, group, async_op, timeout and factor.
template <auto Function>
PyObject* combined_in_place(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if (count != 6 || !are_default(given[3], given[4]) || !is_one(given[5])) return not_implemented();
  const GroupCall handle(given[2]);
  const int op = reduction_of(given[1]);
  ArrayView array;
  if (!handle || op < 0 || !array.take_any(given[0], kBufferWritable)) return not_implemented();
  const auto call = [&](const ivy_call* how) {
    return (library.*Function)(handle.comm, IVY_IN_PLACE, array.data(), array.count(),
                               array.dtype(), op, how);
  };
  return call_without_lock(call, array.memory()) && mark_changed(given[0]) ? new_reference(given[0])
                                                                           : nullptr;
}

// Takes xs, op, group, async_op, timeout, factor and whether it works in place.
inline PyObject* all_reduce_coalesced(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if (count != 7 || !are_default(given[3], given[4]) || !is_one(given[5])) return not_implemented();
  const GroupCall handle(given[2]);
  const int op = reduction_of(given[1]);
  if (!handle || op < 0 || !PyList_CheckExact(given[0])) return not_implemented();
  ArrayList arrays;
  if (!arrays.take(given[0], given[6] == Py_True)) return not_implemented();
  const auto call = [&](const ivy_call* how) {
    return library.all_reduce_coalesced(handle.comm, arrays.count(), arrays.sends(),
                                        arrays.receives(), arrays.counts(), arrays.dtype(), op,
                                        how);
  };
  return call_without_lock(call, arrays.memory()) && arrays.mark_all_changed()
             ? new_reference(arrays.results())
             : nullptr;
}

// Takes x, op, split, group, out, async_op, timeout and factor.
inline PyObject* reduce_scatter(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if (count != 8 || !are_default(given[5], given[6]) || !is_one(given[7])) return not_implemented();
  if (given[2] != Py_None || given[4] != Py_None) return not_implemented();
  const GroupCall handle(given[3]);
  const int op = reduction_of(given[1]);
  ArrayView input;
  if (!handle || op < 0 || !input.take_with_rows(given[0], 0)) return not_implemented();
  if (!is_divisible(input, handle)) return not_implemented();
  Result result;
  if (!result.make(empty_of_rows(given[0], input, input.rows() / handle.size))) {
    return not_implemented();
  }
  const auto call = [&](const ivy_call* how) {
    return library.reduce_scatter(handle.comm, input.data(), result.view.data(),
                                  result.view.count(), input.dtype(), op, how);
  };
  return call_without_lock(call, input.memory()) ? result.give() : nullptr;
}

// Takes x, axis, uneven, group, out, async_op and timeout.
inline PyObject* all_gather(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if (count != 7 || !are_default(given[5], given[6])) return not_implemented();
  if (small_number(given[1]) != 0 || given[2] != Py_False || given[4] != Py_None) {
    return not_implemented();
  }
  const GroupCall handle(given[3]);
  ArrayView input;
  if (!handle || !input.take_with_rows(given[0], 0)) return not_implemented();
  const Py_ssize_t rows = input.rows_or_one() * handle.size;
  Result result;
  if (!result.make(empty_of_rows(given[0], input, rows))) return not_implemented();
  const auto call = [&](const ivy_call* how) {
    return library.all_gather(handle.comm, input.data(), result.view.data(), input.count(),
                              input.dtype(), how);
  };
  return call_without_lock(call, input.memory()) ? result.give() : nullptr;
}

// Takes x, dst, axis, uneven, group, out, async_op and timeout.
inline PyObject* gather(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if (count != 8 || !are_default(given[6], given[7])) return not_implemented();
  if (small_number(given[2]) != 0 || given[3] != Py_False || given[5] != Py_None)
    return not_implemented();
  const GroupCall handle(given[4]);
  const int root = root_of(given[1], handle);
  ArrayView input;
  if (root < 0 || !input.take_with_rows(given[0], 0)) return not_implemented();
  const bool is_root = handle.rank == root;
  const Py_ssize_t rows = input.rows_or_one() * handle.size;
  Result result;
  if (is_root && !result.make(empty_of_rows(given[0], input, rows))) return not_implemented();
  const auto call = [&](const ivy_call* how) {
    return library.gather(handle.comm, input.data(), is_root ? result.view.data() : nullptr,
                          input.count(), input.dtype(), root, how);
  };
  if (!call_without_lock(call, input.memory())) return nullptr;
  return is_root ? result.give() : new_reference(Py_None);
}

// all_gather_ and all_to_all_, whose array has one part of equal length for each rank.
template <auto Function>
PyObject* exchanged_in_place(PyObject* given, PyObject* group) {
  const GroupCall handle(group);
  ArrayView array;
  if (!handle || !array.take_with_rows(given, kBufferWritable) || !is_divisible(array, handle))
    return not_implemented();
  const std::size_t each = array.count() / static_cast<std::size_t>(handle.size);
  const auto call = [&](const ivy_call* how) {
    return (library.*Function)(handle.comm, IVY_IN_PLACE, array.data(), each, array.dtype(), how);
  };
  return call_without_lock(call, array.memory()) && mark_changed(given) ? new_reference(given)
                                                                        : nullptr;
}

// Takes x, split, group, async_op and timeout.
inline PyObject* all_gather_in_place(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if (count != 5 || !are_default(given[3], given[4]) || given[1] != Py_None)
    return not_implemented();
  return exchanged_in_place<&Library::all_gather>(given[0], given[2]);
}

// Takes x, group, async_op and timeout.
inline PyObject* all_to_all_in_place(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if (count != 4 || !are_default(given[2], given[3])) return not_implemented();
  return exchanged_in_place<&Library::all_to_all>(given[0], given[1]);
}

// Takes x, split, output_split, group, out, async_op and timeout.
inline PyObject* all_to_all(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if (count != 7 || !are_default(given[5], given[6])) return not_implemented();
  if (given[1] != Py_None || given[2] != Py_None || given[4] != Py_None) return not_implemented();
  const GroupCall handle(given[3]);
  ArrayView input;
  if (!handle || !input.take_with_rows(given[0], 0) || !is_divisible(input, handle))
    return not_implemented();
  Result result;
  if (!result.make(empty_like(given[0]))) return not_implemented();
  const std::size_t each = input.count() / static_cast<std::size_t>(handle.size);
  const auto call = [&](const ivy_call* how) {
    return library.all_to_all(handle.comm, input.data(), result.view.data(), each, input.dtype(),
                              how);
  };
  return call_without_lock(call, input.memory()) ? result.give() : nullptr;
}

// Takes group, async_op and timeout.
inline PyObject* barrier(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if (count != 3 || !are_default(given[1], given[2])) return not_implemented();
  const GroupCall handle(given[0]);
  if (!handle) return not_implemented();
  const auto call = [&](const ivy_call* how) { return library.barrier(handle.comm, how); };
  return call_without_lock(call) ? new_reference(Py_None) : nullptr;
}

inline PyMethodDef collective_methods[] = {
// all_reduce, all_reduce_, scan, scan_, exscan and exscan_.
#define IVY_COMBINING(function, ...)                                         \
  {#function, fast(combined<&Library::function>), kMethodFastCall, nullptr}, \
      {#function "_", fast(combined_in_place<&Library::function>), kMethodFastCall, nullptr},
#include "proto/wire/operations.def"
    {"all_reduce_coalesced", fast(all_reduce_coalesced), kMethodFastCall, nullptr},
    {"reduce", fast(reduce), kMethodFastCall, nullptr},
    {"reduce_", fast(reduce_in_place), kMethodFastCall, nullptr},
    {"reduce_scatter", fast(reduce_scatter), kMethodFastCall, nullptr},
    {"broadcast", fast(broadcast), kMethodFastCall, nullptr},
    {"broadcast_", fast(broadcast_in_place), kMethodFastCall, nullptr},
    {"all_gather", fast(all_gather), kMethodFastCall, nullptr},
    {"all_gather_", fast(all_gather_in_place), kMethodFastCall, nullptr},
    {"gather", fast(gather), kMethodFastCall, nullptr},
    {"all_to_all", fast(all_to_all), kMethodFastCall, nullptr},
    {"all_to_all_", fast(all_to_all_in_place), kMethodFastCall, nullptr},
    {"barrier", fast(barrier), kMethodFastCall, nullptr},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace ivy::python
