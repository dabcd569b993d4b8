// SPDX-License-Identifier: Apache-2.0
// DLPack's capsules: takes the memory that another framework exports, and exports memory.
//
// Thread: any that is attached to the interpreter; a consumer may release memory on any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <utility>

#include "comm/python/extension/python.h"

namespace ivy::python {

// The structs of dlpack.h 1.x, where they are DLTensor, DLManagedTensor and
// DLManagedTensorVersioned.
struct DlTensor {
  void* data;
  std::int32_t device_type;
  std::int32_t device_id;
  std::int32_t ndim;
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
  std::int64_t* shape;
  std::int64_t* strides;  // In elements; null: dense, in C order.
  std::uint64_t byte_offset;
};
struct DlManaged {
  DlTensor tensor;
  void* context;
  void (*deleter)(void* self);
};
struct DlManagedVersioned {
  std::uint32_t major;
  std::uint32_t minor;
  void* context;
  void (*deleter)(void* self);
  std::uint64_t flags;
  DlTensor tensor;
};

inline constexpr const char* kDlpackOwner = "ivycomm.dlpack_owner";

// The memory of an exporter, as the content of a capsule. It is released with the capsule, or
// before by release_dlpack(), but not while the interpreter exits.
struct DlOwner {
  void* managed;
  void (*deleter)(void* self);

  void release() {
    const auto call = std::exchange(deleter, nullptr);
    if (call == nullptr || Py_IsInitialized() == 0) return;
    PyThreadState* const state = PyEval_SaveThread();
    call(managed);
    PyEval_RestoreThread(state);
  }
};

inline PyObject* tuple_of(const std::int64_t* numbers, Py_ssize_t count) {
  PyObject* const tuple = PyTuple_New(count);
  for (Py_ssize_t i = 0; tuple != nullptr && i < count; ++i) {
    PyTuple_SetItem(tuple, i, PyLong_FromLongLong(numbers[i]));
  }
  return tuple;
}

// Implements take_dlpack(capsule), which consumes it. Returns (owner, (major, minor), flags,
// address of element 0, (device type, number), (type code, bits, lanes), shape, strides in elements
// or None). The version is (0, 0) before the protocol's version 1.
inline PyObject* take_dlpack(PyObject*, PyObject* capsule) {
  const bool is_versioned = PyCapsule_IsValid(capsule, "dltensor_versioned") != 0;
  if (!is_versioned && PyCapsule_IsValid(capsule, "dltensor") == 0) {
    return PyErr_Format(PyExc_TypeError,
                        "__dlpack__ returned %R instead of an unused DLPack capsule", capsule);
  }
  void* const memory = PyMem_Malloc(sizeof(DlOwner));
  if (memory == nullptr) return PyErr_NoMemory();
  auto* const owned = ::new (memory) DlOwner{nullptr, nullptr};
  PyObject* const owner = PyCapsule_New(owned, kDlpackOwner, [](PyObject* ended) {
    auto* const owned_ = static_cast<DlOwner*>(PyCapsule_GetPointer(ended, kDlpackOwner));
    owned_->release();
    PyMem_Free(owned_);
  });
  if (owner == nullptr) {
    PyMem_Free(memory);
    return nullptr;
  }
  DlManagedVersioned seen = {};
  owned->managed = PyCapsule_GetPointer(capsule, is_versioned ? "dltensor_versioned" : "dltensor");
  if (is_versioned) {
    const auto& given = *static_cast<DlManagedVersioned*>(owned->managed);
    seen.major = given.major;
    seen.minor = given.minor;
    seen.deleter = given.deleter;
    // A later major version may have another layout behind these fields.
    if (seen.major <= 1) seen = given;
  } else {
    const auto& given = *static_cast<DlManaged*>(owned->managed);
    seen.tensor = given.tensor;
    seen.deleter = given.deleter;
  }
  // Its destructor leaves the memory to its new owner from now on.
  PyCapsule_SetName(capsule, is_versioned ? "used_dltensor_versioned" : "used_dltensor");
  owned->deleter = seen.deleter;
  const DlTensor& tensor = seen.tensor;
  PyObject* const strides = tensor.strides != nullptr && tensor.ndim > 0
                                ? tuple_of(tensor.strides, tensor.ndim)
                                : new_reference(Py_None);
  const auto address = reinterpret_cast<std::uintptr_t>(tensor.data) + tensor.byte_offset;
  return Py_BuildValue(
      "N(II)KK(ii)(iii)NN", owner, static_cast<unsigned>(seen.major),
      static_cast<unsigned>(seen.minor), static_cast<unsigned long long>(seen.flags),
      static_cast<unsigned long long>(address), static_cast<int>(tensor.device_type),
      static_cast<int>(tensor.device_id), static_cast<int>(tensor.code),
      static_cast<int>(tensor.bits), static_cast<int>(tensor.lanes),
      tuple_of(tensor.shape, tensor.ndim), strides);
}

// Implements release_dlpack(owner): releases the memory, unless that has been done.
inline PyObject* release_dlpack(PyObject*, PyObject* owner) {
  auto* const owned = static_cast<DlOwner*>(PyCapsule_GetPointer(owner, kDlpackOwner));
  if (owned == nullptr) return nullptr;
  owned->release();
  return new_reference(Py_None);
}

// Called by the consumer at any time, on any thread, and after the interpreter has ended.
inline void release_export(void* self) {
  auto* const managed = static_cast<DlManaged*>(self);
  if (Py_IsInitialized() != 0) {
    const PyGILState_STATE state = PyGILState_Ensure();
    Py_DECREF(static_cast<PyObject*>(managed->context));
    PyGILState_Release(state);
  }
  std::free(managed);
}

// Implements make_dlpack(address, shape, strides in elements, type code, bits, device type, device
// number, owner): a capsule of the protocol before version 1, whose consumer keeps `owner` alive.
inline PyObject* make_dlpack(PyObject*, PyObject* arguments) {
  unsigned long long address = 0;
  PyObject* shape = nullptr;
  PyObject* strides = nullptr;
  int code = 0;
  int bits = 0;
  int device_type = 0;
  int device_id = 0;
  PyObject* owner = nullptr;
  if (PyArg_ParseTuple(arguments, "KOOiiiiO", &address, &shape, &strides, &code, &bits,
                       &device_type, &device_id, &owner) == 0) {
    return nullptr;
  }
  const Py_ssize_t axes = PyTuple_Size(shape);
  if (axes < 0 || PyTuple_Size(strides) != axes) return nullptr;
  const auto numbers = 2 * static_cast<std::size_t>(axes);
  // Not CPython's memory: it is freed without the interpreter's lock.
  void* const memory = std::malloc(sizeof(DlManaged) + numbers * sizeof(std::int64_t));
  if (memory == nullptr) return PyErr_NoMemory();
  auto* const managed = ::new (memory) DlManaged{};
  auto* const lengths = reinterpret_cast<std::int64_t*>(managed + 1);
  for (Py_ssize_t axis = 0; axis < axes; ++axis) {
    lengths[axis] = PyLong_AsLongLong(PyTuple_GetItem(shape, axis));
    lengths[axes + axis] = PyLong_AsLongLong(PyTuple_GetItem(strides, axis));
  }
  managed->tensor = {reinterpret_cast<void*>(address),
                     device_type,
                     device_id,
                     static_cast<std::int32_t>(axes),
                     static_cast<std::uint8_t>(code),
                     static_cast<std::uint8_t>(bits),
                     1,
                     lengths,
                     lengths + axes,
                     0};
  managed->context = new_reference(owner);
  managed->deleter = release_export;
  PyObject* const capsule = PyCapsule_New(managed, "dltensor", [](PyObject* unused) {
    if (PyCapsule_IsValid(unused, "dltensor") != 0) {
      release_export(PyCapsule_GetPointer(unused, "dltensor"));
    }
  });
  if (capsule == nullptr || PyErr_Occurred() != nullptr) {
    if (capsule == nullptr) release_export(managed);
    Py_XDECREF(capsule);
    return nullptr;
  }
  return capsule;
}

}  // namespace ivy::python
