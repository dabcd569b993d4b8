// SPDX-License-Identifier: Apache-2.0
// call_library(): any operation of the library, with the arguments of its C function. The package
// calls it (calls.call, for work.start) if the functions in collective_calls.h and message_calls.h
// cannot handle the arguments.
//
// Thread: any that is attached to the interpreter. The call releases the interpreter's lock while
// it waits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <utility>

#include "comm/python/extension/arguments.h"
#include "comm/python/extension/group_handles.h"
#include "comm/python/extension/interrupts.h"
#include "comm/python/extension/library.h"

namespace ivy::python {

// The arguments of one call: a tuple of numbers, None for null, and ctypes arrays, which stand for
// their address. The tuple keeps all of them alive.
class PlainArguments {
 public:
  explicit PlainArguments(PyObject* tuple) : tuple_(tuple) {}
  Py_ssize_t count() const { return PyTuple_Size(tuple_); }

  // Returns false and sets an exception if the argument is of another type, or does not fit.
  bool take(Py_ssize_t index, int& out) const {
    const long number = PyLong_AsLong(PyTuple_GetItem(tuple_, index));
    if (PyErr_Occurred() != nullptr) return false;
    out = static_cast<int>(number);
    if (out == number) return true;
    PyErr_Format(PyExc_OverflowError, "argument %zd, %ld, does not fit into 32 bits", index,
                 number);
    return false;
  }
  bool take(Py_ssize_t index, std::size_t& out) const {
    out = PyLong_AsSize_t(PyTuple_GetItem(tuple_, index));
    return PyErr_Occurred() == nullptr;
  }
  template <class Target>
  bool take(Py_ssize_t index, Target*& out) const {
    PyObject* const given = PyTuple_GetItem(tuple_, index);
    void* address = nullptr;
    if (PyLong_Check(given)) {
      address = PyLong_AsVoidPtr(given);
    } else if (given != Py_None) {
      take_object(index, given, address);
    }
    out = static_cast<Target*>(address);
    return PyErr_Occurred() == nullptr;
  }

 private:
  // A ctypes array stands for its own address, a c_void_p, which has no axes, for the address in
  // it.
  static void take_object(Py_ssize_t index, PyObject* given, void*& address) {
    IvyPyBuffer view;
    if (PyObject_GetBuffer(given, &view, kBufferFormat | kBufferShape) != 0) return;
    const bool is_pointer =
        view.ndim == 0 && view.format != nullptr && std::strchr(view.format, 'P') != nullptr;
    if (is_pointer) std::memcpy(&address, view.buf, sizeof address);
    if (view.ndim == 1) address = view.buf;
    const bool is_taken = is_pointer || view.ndim == 1;
    PyBuffer_Release(&view);
    if (!is_taken) PyErr_Format(PyExc_TypeError, "argument %zd is not a pointer", index);
  }

  PyObject* const tuple_;
};

// The fields of ivy_call that the package sets.
struct PlainCall {
  std::int64_t timeout_ms = 0;
  double factor = 1;
  DenseMemory memory;         // Only its device and stream are used.
  ivy_work** work = nullptr;  // If null, the call blocks.
};

template <class... All, std::size_t... Index>
PyObject* call_plainly(int (*function)(All...), const PlainArguments& given, const PlainCall& with,
                       std::index_sequence<Index...>) {
  std::tuple<std::tuple_element_t<Index, std::tuple<All...>>...> values;
  if (given.count() != sizeof...(Index)) {
    return PyErr_Format(PyExc_TypeError, "got %zd arguments instead of %zd", given.count(),
                        static_cast<Py_ssize_t>(sizeof...(Index)));
  }
  if (!(given.take(Index, std::get<Index>(values)) && ...)) return nullptr;
  const auto call = [&](ivy_call* how) {
    how->timeout_ms = with.timeout_ms;
    how->factor = with.factor;
    return function(std::get<Index>(values)..., how);
  };
  return call_without_lock(call, with.memory, with.work) ? new_reference(Py_None) : nullptr;
}

template <class... All>
PyObject* call_plainly(int (*function)(All...), const PlainArguments& given,
                       const PlainCall& with) {
  return call_plainly(function, given, with, std::make_index_sequence<sizeof...(All) - 1>());
}

// Takes the C function's name, its arguments except the last, the timeout in milliseconds, the
// factor, the stream or None, and the address that receives the handle of an asynchronous operation
// or None. Returns NotImplemented if the communicator, the first argument, was freed.
inline PyObject* call_library(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if (count != 6 || !PyTuple_Check(given[1]) || PyTuple_Size(given[1]) == 0) {
    return PyErr_Format(PyExc_TypeError,
                        "call_library takes a name, a tuple and four other arguments");
  }
  Py_ssize_t length = 0;
  const char* const name = PyUnicode_AsUTF8AndSize(given[0], &length);
  if (name == nullptr) return nullptr;
  PlainCall with;
  with.timeout_ms = PyLong_AsLongLong(given[2]);
  with.factor = PyFloat_AsDouble(given[3]);
  if (given[4] != Py_None) {
    with.memory.device = 0;
    with.memory.stream = PyLong_AsVoidPtr(given[4]);
  }
  if (given[5] != Py_None) with.work = static_cast<ivy_work**>(PyLong_AsVoidPtr(given[5]));
  if (PyErr_Occurred() != nullptr) return nullptr;
  const GroupCall handle(PyTuple_GetItem(given[1], 0));
  if (!handle) return not_implemented();
  const PlainArguments arguments(given[1]);
  PyObject* result = nullptr;
  const bool is_known = library.find([&](const char* each, auto function) {
    if (std::strcmp(name, each) != 0) return false;
    result = call_plainly(function, arguments, with);
    return true;
  });
  if (!is_known) PyErr_Format(PyExc_ValueError, "the library has no operation %s", name);
  return result;
}

}  // namespace ivy::python
