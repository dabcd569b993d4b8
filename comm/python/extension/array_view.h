// SPDX-License-Identifier: Apache-2.0
// A NumPy array (through the buffer protocol) or a tensor as dense memory; also creates new ones
// like it.
//
// Thread: any that is attached to the interpreter; the memory may be used by any.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "comm/contract/ivycomm.h"
#include "comm/python/extension/python.h"
#include "comm/python/extension/tensors.h"

namespace ivy::python {

// Objects from NumPy.
struct NumPy {
  PyObject* array_type;
  PyObject* empty;
  PyObject* empty_like;
};
// Null before NumPy is imported. Then set once and never freed, because other threads may be
// reading it.
inline std::atomic<const NumPy*> loaded_numpy = nullptr;
// Requires that NumPy was imported, which the existence of an array proves.
inline const NumPy& numpy() { return *loaded_numpy.load(std::memory_order_acquire); }

inline PyObject* load_numpy(PyObject*, PyObject* arguments) {
  NumPy given = {};
  if (PyArg_ParseTuple(arguments, "OOO", &given.array_type, &given.empty, &given.empty_like) == 0) {
    return nullptr;
  }
  const NumPy* const numpy = keep(given);
  if (numpy == nullptr) return nullptr;
  for (PyObject* const each : {given.array_type, given.empty, given.empty_like}) Py_INCREF(each);
  loaded_numpy.store(numpy, std::memory_order_release);
  return new_reference(Py_None);
}

// Returns the element type for a native format of the struct module, as used by NumPy, or -1 if
// ivycomm does not have it.
inline int dtype_of(const char* format, Py_ssize_t item) {
  constexpr int kSigned[] = {-1, IVY_I8, IVY_I16, -1, IVY_I32, -1, -1, -1, IVY_I64};
  constexpr int kUnsigned[] = {-1, IVY_U8, IVY_U16, -1, IVY_U32, -1, -1, -1, IVY_U64};
  const bool is_complex = format[0] == 'Z';
  const char letter = is_complex ? format[1] : format[0];
  if (letter == '\0' || format[is_complex ? 2 : 1] != '\0' || item > 16) return -1;
  if (is_complex) return letter == 'f' ? IVY_C64 : letter == 'd' ? IVY_C128 : -1;
  switch (letter) {
    case 'd':
      return IVY_F64;
    case 'f':
      return IVY_F32;
    case 'e':
      return IVY_F16;
    case '?':
      return IVY_BOOL;
    case 'b':
    case 'h':
    case 'i':
    case 'l':
    case 'q':
      return item <= 8 ? kSigned[item] : -1;
    case 'B':
    case 'H':
    case 'I':
    case 'L':
    case 'Q':
      return item <= 8 ? kUnsigned[item] : -1;
    default:
      return -1;
  }
}

class ArrayView {
 public:
  ArrayView() = default;
  ~ArrayView() {
    if (is_taken_) PyBuffer_Release(&buffer_);
  }
  ArrayView(const ArrayView&) = delete;
  ArrayView& operator=(const ArrayView&) = delete;

  // Returns false, without an exception, if `array` is not a plain array or tensor, not dense, or
  // of an element type that ivycomm does not have. Subclasses are rejected, because they may give
  // their memory another meaning, as masked arrays do.
  bool take_any(PyObject* array, int flags) {
    if (!is_tensor(array)) return take(array, flags);
    return take_tensor(array, memory_);
  }
  // As take_any(), and makes rows() valid.
  bool take_with_rows(PyObject* array, int flags) {
    if (!take_any(array, flags)) return false;
    if (is_tensor(array)) return take_rows(array, rows_);
    rows_ = buffer_.ndim > 0 ? buffer_.shape[0] : kNoAxis;
    return true;
  }
  bool take_of_host(PyObject* array, int flags) {
    return take_any(array, flags) && memory_.device < 0;
  }
  bool take(PyObject* array, int flags) {
    const NumPy* const known = loaded_numpy.load(std::memory_order_acquire);
    if (known == nullptr || reinterpret_cast<PyObject*>(Py_TYPE(array)) != known->array_type) {
      return false;
    }
    if (PyObject_GetBuffer(array, &buffer_, kBufferCContiguous | kBufferFormat | flags) != 0) {
      PyErr_Clear();
      return false;
    }
    is_taken_ = true;
    // Types without bytes, such as an empty structure, have no elements to count.
    if (buffer_.format == nullptr || buffer_.itemsize <= 0) return false;
    memory_.dtype = dtype_of(buffer_.format, buffer_.itemsize);
    memory_.data = buffer_.buf;
    memory_.count =
        static_cast<std::size_t>(buffer_.len) / static_cast<std::size_t>(buffer_.itemsize);
    return dtype() >= 0;
  }

  const DenseMemory& memory() const { return memory_; }
  void* data() const { return memory_.data; }
  std::size_t count() const { return memory_.count; }
  int dtype() const { return memory_.dtype; }
  // Returns whether one operation can use both.
  bool goes_with(const ArrayView& other) const {
    return dtype() == other.dtype() && memory_.device == other.memory_.device;
  }
  Py_ssize_t rows() const { return rows_; }
  // Returns the number of rows for an operation; an array without an axis has one row.
  Py_ssize_t rows_or_one() const { return rows_ == kNoAxis ? 1 : rows_; }
  // bytes(), dimensions() and length() require an array, not a tensor.
  std::size_t bytes() const { return static_cast<std::size_t>(buffer_.len); }
  int dimensions() const { return buffer_.ndim; }
  Py_ssize_t length(int axis) const { return buffer_.shape[axis]; }

  // Returns whether a result of `input` can be stored here.
  bool can_take(const ArrayView& input, bool is_in_place) const {
    return is_like(input) && (is_in_place || !overlaps(input));
  }
  bool is_like(const ArrayView& other) const {
    if (dtype() != other.dtype() || buffer_.ndim != other.buffer_.ndim) return false;
    for (int axis = 0; axis < buffer_.ndim; ++axis) {
      if (length(axis) != other.length(axis)) return false;
    }
    return true;
  }
  bool overlaps(const ArrayView& other) const {
    const auto begin = reinterpret_cast<std::uintptr_t>(data());
    const auto other_begin = reinterpret_cast<std::uintptr_t>(other.data());
    return begin < other_begin + static_cast<std::size_t>(other.buffer_.len) &&
           other_begin < begin + static_cast<std::size_t>(buffer_.len);
  }

 private:
  IvyPyBuffer buffer_;
  DenseMemory memory_;
  Py_ssize_t rows_ = kNoAxis;
  bool is_taken_ = false;
};

// Returns a new array, or null without an exception if that fails, so that the Python function
// reports why.
inline PyObject* empty_like(PyObject* array) {
  PyObject* const make = is_tensor(array) ? torch().empty_like : numpy().empty_like;
  return without_exception(PyObject_CallFunctionObjArgs(make, array, nullptr));
}

// Returns a new array like `array` with that many rows; an array without dimensions gets one
// dimension.
inline PyObject* empty_of_rows(PyObject* array, const ArrayView& view, Py_ssize_t rows) {
  if (is_tensor(array)) return new_of_rows(array, rows);
  PyObject* const shape = PyTuple_New(view.dimensions() > 0 ? view.dimensions() : 1);
  if (shape == nullptr) return without_exception(nullptr);
  bool is_made = PyTuple_SetItem(shape, 0, PyLong_FromSsize_t(rows)) == 0;
  for (int axis = 1; axis < view.dimensions(); ++axis) {
    is_made &= PyTuple_SetItem(shape, axis, PyLong_FromSsize_t(view.length(axis))) == 0;
  }
  PyObject* const dtype = is_made ? PyObject_GetAttrString(array, "dtype") : nullptr;
  PyObject* const made = dtype != nullptr
                             ? PyObject_CallFunctionObjArgs(numpy().empty, shape, dtype, nullptr)
                             : nullptr;
  Py_DECREF(shape);
  Py_XDECREF(dtype);
  return without_exception(made);
}

}  // namespace ivy::python
