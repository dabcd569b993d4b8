// SPDX-License-Identifier: Apache-2.0
// A plain torch tensor as dense memory, on the CPU or a CUDA device. torch has no limited API, so
// its methods are called.
//
// Thread: any that is attached to the interpreter; the memory may be used by any.
#pragma once

#include <atomic>
#include <cstddef>

#include "comm/python/extension/python.h"

namespace ivy::python {

// Objects from torch.
struct Torch {
  PyObject* type = nullptr;
  PyObject* layout = nullptr;  // torch.strided, the only layout that is dense memory.
  PyObject* dtypes = nullptr;  // A dict from torch's types to ivycomm's numbers.
  PyObject* empty_like = nullptr;
  PyObject* increment_version = nullptr;  // Notifies autograd that a tensor was written.
  PyObject* current_stream = nullptr;     // Takes a device's number; None without CUDA.
  PyObject* names[14] = {};
};
// Null before torch is imported. Then set once and never freed, because other threads may be
// reading it.
inline std::atomic<const Torch*> loaded_torch = nullptr;
// Requires that torch was imported, which the existence of a tensor proves.
inline const Torch& torch() { return *loaded_torch.load(std::memory_order_acquire); }

enum TensorName {
  kIsCpu,
  kLayout,
  kDtype,
  kRequiresGrad,
  kIsNested,
  kIsContiguous,
  kIsNegative,
  kIsInference,
  kDataPointer,
  kElements,
  kIsCuda,
  kDevice,
  kShape,
  kNewEmpty
};

// A tensor's memory, and the stream on which its framework uses it.
struct DenseMemory {
  void* data = nullptr;
  std::size_t count = 0;
  int dtype = -1;
  int device = -1;  // Number of the CUDA device, or -1 for memory of the host.
  // The framework has reported that number; otherwise it is only known to be on a device.
  bool is_reported = false;
  void* stream = nullptr;
};

// Implements load_torch(Tensor, strided, dtypes, empty_like, increment_version, current_stream).
inline PyObject* load_torch(PyObject*, PyObject* arguments) {
  constexpr const char* kNames[] = {"is_cpu",    "layout",        "dtype",   "requires_grad",
                                    "is_nested", "is_contiguous", "is_neg",  "is_inference",
                                    "data_ptr",  "numel",         "is_cuda", "get_device",
                                    "shape",     "new_empty"};
  PyObject* given[6] = {};
  if (PyArg_ParseTuple(arguments, "OOOOOO", &given[0], &given[1], &given[2], &given[3], &given[4],
                       &given[5]) == 0) {
    return nullptr;
  }
  Torch* const torch = keep(Torch{given[0], given[1], given[2], given[3], given[4], given[5]});
  if (torch == nullptr) return nullptr;
  for (PyObject* const each : given) Py_INCREF(each);
  for (int name = 0; name <= kNewEmpty; ++name) {
    torch->names[name] = PyUnicode_InternFromString(kNames[name]);
  }
  loaded_torch.store(torch, std::memory_order_release);
  return new_reference(Py_None);
}

inline bool is_tensor(PyObject* value) {
  const Torch* const known = loaded_torch.load(std::memory_order_acquire);
  return known != nullptr && reinterpret_cast<PyObject*>(Py_TYPE(value)) == known->type;
}

// Returns whether the attribute, or the result of the method with that name, is that object.
inline bool attribute_is(PyObject* tensor, TensorName name, PyObject* wanted) {
  PyObject* const value = without_exception(PyObject_GetAttr(tensor, torch().names[name]));
  Py_XDECREF(value);
  return value == wanted;
}
inline bool method_is(PyObject* tensor, TensorName name, PyObject* wanted) {
  PyObject* const value =
      without_exception(PyObject_CallMethodObjArgs(tensor, torch().names[name], nullptr));
  Py_XDECREF(value);
  return value == wanted;
}
inline bool take_number(PyObject* tensor, TensorName name, unsigned long long& number) {
  PyObject* const value =
      without_exception(PyObject_CallMethodObjArgs(tensor, torch().names[name], nullptr));
  if (value == nullptr) return false;
  number = PyLong_AsUnsignedLongLong(value);
  Py_DECREF(value);
  return without_exception(PyErr_Occurred() == nullptr ? tensor : nullptr) != nullptr;
}

// Determines the device of a tensor that is not on the CPU, and the current stream there.
inline bool take_device(PyObject* tensor, DenseMemory& memory) {
  unsigned long long number = 0;
  if (torch().current_stream == Py_None || !attribute_is(tensor, kIsCuda, Py_True) ||
      !take_number(tensor, kDevice, number)) {
    return false;
  }
  memory.device = static_cast<int>(number);
  memory.is_reported = true;
  PyObject* const index = PyLong_FromLong(memory.device);
  PyObject* const stream = PyObject_CallFunctionObjArgs(torch().current_stream, index, nullptr);
  Py_XDECREF(index);
  if (stream == nullptr) return without_exception(nullptr) != nullptr;
  memory.stream = PyLong_AsVoidPtr(stream);
  Py_DECREF(stream);
  return without_exception(PyErr_Occurred() == nullptr ? tensor : nullptr) != nullptr;
}

// Returns false, without an exception, if the tensor is on another kind of device, not one dense
// block, of another type, negated, or subject to autograd or torch.inference_mode().
inline bool take_tensor(PyObject* tensor, DenseMemory& memory) {
  if (!attribute_is(tensor, kLayout, torch().layout) ||
      !attribute_is(tensor, kRequiresGrad, Py_False) ||
      !attribute_is(tensor, kIsNested, Py_False) || !method_is(tensor, kIsContiguous, Py_True) ||
      !method_is(tensor, kIsNegative, Py_False) || !method_is(tensor, kIsInference, Py_False)) {
    return false;
  }
  if (!attribute_is(tensor, kIsCpu, Py_True) && !take_device(tensor, memory)) return false;
  PyObject* const type = without_exception(PyObject_GetAttr(tensor, torch().names[kDtype]));
  if (type == nullptr) return false;
  memory.dtype = number_in(torch().dtypes, type);
  Py_DECREF(type);
  if (memory.dtype < 0) return false;
  unsigned long long address = 0;
  unsigned long long elements = 0;
  if (!take_number(tensor, kDataPointer, address) || !take_number(tensor, kElements, elements)) {
    return false;
  }
  memory.data = reinterpret_cast<void*>(address);
  memory.count = static_cast<std::size_t>(elements);
  return true;
}

inline constexpr Py_ssize_t kNoAxis = -1;

// Gets the length of the first axis, or kNoAxis if there is none. Returns false, without an
// exception, on failure.
inline bool take_rows(PyObject* tensor, Py_ssize_t& rows) {
  PyObject* const shape = without_exception(PyObject_GetAttr(tensor, torch().names[kShape]));
  const bool is_tuple = shape != nullptr && PyTuple_Check(shape) != 0;
  if (is_tuple) {
    rows = PyTuple_Size(shape) == 0 ? kNoAxis : PyLong_AsSsize_t(PyTuple_GetItem(shape, 0));
  }
  Py_XDECREF(shape);
  return without_exception(PyErr_Occurred() == nullptr && is_tuple ? tensor : nullptr) != nullptr;
}

// Returns a tensor with that many rows that is otherwise like this one, or null without an
// exception.
inline PyObject* new_of_rows(PyObject* tensor, Py_ssize_t rows) {
  PyObject* const shape = without_exception(PyObject_GetAttr(tensor, torch().names[kShape]));
  if (shape == nullptr) return nullptr;
  const Py_ssize_t axes = PyTuple_Size(shape);
  PyObject* const wanted = PyTuple_New(axes > 0 ? axes : 1);
  bool is_made = wanted != nullptr && PyTuple_SetItem(wanted, 0, PyLong_FromSsize_t(rows)) == 0;
  for (Py_ssize_t axis = 1; is_made && axis < axes; ++axis) {
    is_made = PyTuple_SetItem(wanted, axis, new_reference(PyTuple_GetItem(shape, axis))) == 0;
  }
  PyObject* const made =
      is_made ? PyObject_CallMethodObjArgs(tensor, torch().names[kNewEmpty], wanted, nullptr)
              : nullptr;
  Py_DECREF(shape);
  Py_XDECREF(wanted);
  return without_exception(made);
}

// Notifies the framework that the array's memory was written. Returns false with an exception set.
inline bool mark_changed(PyObject* array) {
  if (!is_tensor(array)) return true;
  PyObject* const nothing = PyObject_CallFunctionObjArgs(torch().increment_version, array, nullptr);
  Py_XDECREF(nothing);
  return nothing != nullptr;
}

}  // namespace ivy::python
