// A plain tensor of torch on the CPU as dense memory. torch has no limited API: its methods are
// asked.
//
// Thread: any that holds the interpreter's lock; the memory may be used without it.
#pragma once

#include <cstddef>

#include "comm/python/extension/python.h"

namespace ivy::python {

// What torch has told; all null before it was imported.
struct Tensors {
  PyObject* type = nullptr;
  PyObject* layout = nullptr;  // torch.strided, the only one that is dense memory.
  PyObject* dtypes = nullptr;  // A dict, from torch's types to the numbers of ours.
  PyObject* empty_like = nullptr;
  PyObject* increment_version = nullptr;  // Tells autograd that a tensor was written into.
  PyObject* names[10] = {};
};
inline Tensors tensors;

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
  kElements
};

// Implements teach_torch(Tensor, strided, dtypes, empty_like, increment_version).
inline PyObject* teach_torch(PyObject*, PyObject* arguments) {
  constexpr const char* kNames[] = {"is_cpu",    "layout",        "dtype",  "requires_grad",
                                    "is_nested", "is_contiguous", "is_neg", "is_inference",
                                    "data_ptr",  "numel"};
  PyObject* given[5] = {};
  if (PyArg_ParseTuple(arguments, "OOOOO", &given[0], &given[1], &given[2], &given[3], &given[4]) ==
      0) {
    return nullptr;
  }
  for (int name = 0; name <= kElements; ++name) {
    keep(tensors.names[name], PyUnicode_InternFromString(kNames[name]));
  }
  keep(tensors.layout, Py_NewRef(given[1]));
  keep(tensors.dtypes, Py_NewRef(given[2]));
  keep(tensors.empty_like, Py_NewRef(given[3]));
  keep(tensors.increment_version, Py_NewRef(given[4]));
  keep(tensors.type, Py_NewRef(given[0]));
  return Py_NewRef(Py_None);
}

inline bool is_tensor(PyObject* value) {
  return reinterpret_cast<PyObject*>(Py_TYPE(value)) == tensors.type;
}

inline PyObject* without_exception(PyObject* made) {
  if (made == nullptr) PyErr_Clear();
  return made;
}

// True if the attribute, or what the method of that name returns, is that object.
inline bool attribute_is(PyObject* tensor, TensorName name, PyObject* wanted) {
  PyObject* const value = without_exception(PyObject_GetAttr(tensor, tensors.names[name]));
  Py_XDECREF(value);
  return value == wanted;
}
inline bool method_is(PyObject* tensor, TensorName name, PyObject* wanted) {
  PyObject* const value =
      without_exception(PyObject_CallMethodObjArgs(tensor, tensors.names[name], nullptr));
  Py_XDECREF(value);
  return value == wanted;
}
inline bool take_number(PyObject* tensor, TensorName name, unsigned long long& number) {
  PyObject* const value =
      without_exception(PyObject_CallMethodObjArgs(tensor, tensors.names[name], nullptr));
  if (value == nullptr) return false;
  number = PyLong_AsUnsignedLongLong(value);
  Py_DECREF(value);
  return without_exception(PyErr_Occurred() == nullptr ? tensor : nullptr) != nullptr;
}

// False, without an exception: not on the CPU, not one dense block, of another type, negated, or
// something that autograd or torch.inference_mode() has a say in.
inline bool take_tensor(PyObject* tensor, void*& data, std::size_t& count, int& dtype) {
  if (!attribute_is(tensor, kIsCpu, Py_True) || !attribute_is(tensor, kLayout, tensors.layout) ||
      !attribute_is(tensor, kRequiresGrad, Py_False) ||
      !attribute_is(tensor, kIsNested, Py_False) || !method_is(tensor, kIsContiguous, Py_True) ||
      !method_is(tensor, kIsNegative, Py_False) || !method_is(tensor, kIsInference, Py_False)) {
    return false;
  }
  PyObject* const type = without_exception(PyObject_GetAttr(tensor, tensors.names[kDtype]));
  if (type == nullptr) return false;
  PyObject* const number = PyDict_GetItemWithError(tensors.dtypes, type);
  Py_DECREF(type);
  if (number == nullptr) return without_exception(nullptr) != nullptr;
  dtype = static_cast<int>(PyLong_AsLong(number));
  unsigned long long address = 0;
  unsigned long long elements = 0;
  if (!take_number(tensor, kDataPointer, address) || !take_number(tensor, kElements, elements)) {
    return false;
  }
  data = reinterpret_cast<void*>(address);
  count = static_cast<std::size_t>(elements);
  return true;
}

// Tells the framework that what it shows was written into. False: an exception is set.
inline bool tell_changed(PyObject* array) {
  if (!is_tensor(array)) return true;
  PyObject* const nothing = PyObject_CallFunctionObjArgs(tensors.increment_version, array, nullptr);
  Py_XDECREF(nothing);
  return nothing != nullptr;
}

}  // namespace ivy::python
