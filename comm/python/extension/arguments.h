// SPDX-License-Identifier: Apache-2.0
// The arguments of a call, the checks whether they are the usual ones, and the call's result.
//
// Thread: any that is attached to the interpreter. connect() sets the variables before the first
// call.
#pragma once

#include <utility>

#include "comm/contract/ivycomm.h"
#include "comm/python/extension/array_view.h"
#include "comm/python/extension/python.h"

namespace ivy::python {

inline PyObject* not_implemented() { return new_reference(Py_NotImplemented); }

inline PyObject* reduction_numbers = nullptr;  // A dict from the names to the numbers.
inline PyObject* reduction_type = nullptr;     // ReduceOp, whose members are also in the dict.
inline PyObject* default_reduction = nullptr;  // The default name.

// Returns -1 if the reduction was not given by its exact name in the table.
inline int reduction_of(PyObject* op) {
  if (op == default_reduction) return IVY_SUM;
  const bool is_member = reinterpret_cast<PyObject*>(Py_TYPE(op)) == reduction_type;
  if (!is_member && !PyUnicode_CheckExact(op)) return -1;
  return number_in(reduction_numbers, op);
}

// Returns whether these arguments have their default values.
inline bool are_default(PyObject* async_op, PyObject* timeout) {
  return async_op == Py_False && timeout == Py_None;
}
inline bool is_one(PyObject* factor) {
  return PyFloat_CheckExact(factor) && PyFloat_AsDouble(factor) == 1.0;
}

// Returns a rank or an axis, or -1 if the object is not a small number.
inline int small_number(PyObject* value) {
  if (!PyLong_CheckExact(value)) return -1;
  int overflow = 0;
  const long number = PyLong_AsLongAndOverflow(value, &overflow);
  return overflow != 0 || number < 0 || number > (1 << 24) ? -1 : static_cast<int>(number);
}

// The result's array and its memory.
struct Result {
  PyObject* array = nullptr;
  ArrayView view;

  ~Result() { Py_XDECREF(array); }
  bool make(PyObject* made) {
    array = made;
    return array != nullptr && view.take_any(array, kBufferWritable);
  }
  PyObject* give() { return std::exchange(array, nullptr); }
};

}  // namespace ivy::python
