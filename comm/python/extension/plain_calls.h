// A call of the library with its arguments as the C interface has them: what the Python package
// calls where the usual functions do not fit (work.start), by another way than ctypes.
//
// Thread: any that holds the interpreter's lock, which is given away during the call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <utility>

#include "comm/python/extension/arguments.h"
#include "comm/python/extension/interrupts.h"
#include "comm/python/extension/library.h"

namespace ivy::python {

// The arguments of one call: a tuple of numbers, None for null, and arrays of ctypes by their
// address. The tuple keeps all of them alive.
class PlainArguments {
 public:
  explicit PlainArguments(PyObject* tuple) : tuple_(tuple) {}
  Py_ssize_t count() const { return PyTuple_Size(tuple_); }

  // False, without an exception: the argument is of another kind.
  bool take(Py_ssize_t index, int& out) const {
    PyObject* const given = PyTuple_GetItem(tuple_, index);
    if (!PyLong_Check(given)) return false;
    const long number = PyLong_AsLong(given);
    out = static_cast<int>(number);
    return has_no_exception() && out == number;
  }
  bool take(Py_ssize_t index, std::size_t& out) const {
    PyObject* const given = PyTuple_GetItem(tuple_, index);
    if (!PyLong_Check(given)) return false;
    out = PyLong_AsSize_t(given);
    return has_no_exception();
  }
  template <class Target>
  bool take(Py_ssize_t index, Target*& out) const {
    PyObject* const given = PyTuple_GetItem(tuple_, index);
    void* address = nullptr;
    if (PyLong_Check(given)) {
      address = PyLong_AsVoidPtr(given);
      if (!has_no_exception()) return false;
    } else if (given != Py_None && !take_object(given, address)) {
      return false;
    }
    out = static_cast<Target*>(address);
    return true;
  }

 private:
  static bool has_no_exception() {
    if (PyErr_Occurred() == nullptr) return true;
    PyErr_Clear();
    return false;
  }
  // An array of ctypes is its memory; a c_void_p, which has no axes, is the address in its memory.
  static bool take_object(PyObject* given, void*& address) {
    Py_buffer view;
    if (PyObject_GetBuffer(given, &view, PyBUF_FORMAT | PyBUF_ND) != 0) {
      PyErr_Clear();
      return false;
    }
    const bool is_pointer =
        view.ndim == 0 && view.format != nullptr && std::strchr(view.format, 'P') != nullptr;
    if (is_pointer) std::memcpy(&address, view.buf, sizeof address);
    if (view.ndim == 1) address = view.buf;
    const bool is_taken = is_pointer || view.ndim == 1;
    PyBuffer_Release(&view);
    return is_taken;
  }

  PyObject* const tuple_;
};

// What a call has beside its arguments.
struct PlainCall {
  std::int64_t timeout_ms = 0;
  double factor = 1;
  DenseMemory memory;  // Only its device and stream count.
};

template <class... All, std::size_t... Index>
PyObject* call_plainly(int (*function)(All...), const PlainArguments& given, const PlainCall& with,
                       std::index_sequence<Index...>) {
  std::tuple<std::tuple_element_t<Index, std::tuple<All...>>...> values;
  if (given.count() != sizeof...(Index)) return not_usual();
  if (!(given.take(Index, std::get<Index>(values)) && ...)) return not_usual();
  const auto call = [&](ivy_call* how) {
    how->timeout_ms = with.timeout_ms;
    how->factor = with.factor;
    return function(std::get<Index>(values)..., how);
  };
  return carry_out(call, with.memory) ? Py_NewRef(Py_None) : nullptr;
}

template <class... All>
PyObject* call_plainly(int (*function)(All...), const PlainArguments& given,
                       const PlainCall& with) {
  return call_plainly(function, given, with, std::make_index_sequence<sizeof...(All) - 1>());
}

// Takes the function's name in C, its arguments but the last, the timeout in milliseconds, the
// factor, and the stream or None.
inline PyObject* call_library(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if (count != 5 || !PyTuple_CheckExact(given[1])) return not_usual();
  Py_ssize_t length = 0;
  const char* const name = PyUnicode_AsUTF8AndSize(given[0], &length);
  PlainCall with;
  with.timeout_ms = PyLong_AsLongLong(given[2]);
  with.factor = PyFloat_AsDouble(given[3]);
  if (given[4] != Py_None) {
    with.memory.device = 0;
    with.memory.stream = PyLong_AsVoidPtr(given[4]);
  }
  if (PyErr_Occurred() != nullptr) return nullptr;
  const PlainArguments arguments(given[1]);
#define IVY_CALLED(function)                    \
  if (std::strcmp(name, "ivy_" #function) == 0) \
    return call_plainly(library.function, arguments, with);
  IVY_PLAIN_FUNCTIONS(IVY_CALLED)
#undef IVY_CALLED
  return not_usual();
}

}  // namespace ivy::python
