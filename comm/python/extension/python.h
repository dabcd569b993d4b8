// SPDX-License-Identifier: Apache-2.0
// CPython's API, and the helpers that all files here use.
//
// Builds with the global interpreter lock use the limited API of version 3.9, so that one file
// serves all of them. Free-threaded builds have no limited API, so the extension is compiled for
// one specific version of them.
//
// Every CPython from 3.9 on exports the buffer protocol, METH_FASTCALL and PyUnicode_AsUTF8AndSize
// in the same form, but they are in the limited API only from 3.11 and 3.10 on. They are declared
// here.
#pragma once

#include <pyconfig.h>

#define PY_SSIZE_T_CLEAN
#ifndef Py_GIL_DISABLED
#define Py_LIMITED_API 0x03090000
#endif
#include <Python.h>

#include <new>
#include <utility>

#ifdef Py_LIMITED_API
extern "C" {
struct IvyPyBuffer {
  void* buf;
  PyObject* obj;
  Py_ssize_t len;
  Py_ssize_t itemsize;
  int readonly;
  int ndim;
  char* format;
  Py_ssize_t* shape;
  Py_ssize_t* strides;
  Py_ssize_t* suboffsets;
  void* internal;
};
int PyObject_GetBuffer(PyObject* object, IvyPyBuffer* view, int flags);
void PyBuffer_Release(IvyPyBuffer* view);
const char* PyUnicode_AsUTF8AndSize(PyObject* text, Py_ssize_t* length);
}
#else
using IvyPyBuffer = Py_buffer;
#endif

namespace ivy::python {

// Flags of the buffer protocol.
inline constexpr int kBufferWritable = 0x1;
inline constexpr int kBufferFormat = 0x4;
inline constexpr int kBufferShape = 0x8;
inline constexpr int kBufferCContiguous = 0x38;  // Implies shape and strides.

inline constexpr int kMethodFastCall = 0x80;

inline PyObject* new_reference(PyObject* object) {
  Py_INCREF(object);
  return object;
}

inline PyObject* without_exception(PyObject* made) {
  if (made == nullptr) PyErr_Clear();
  return made;
}

// Returns the small number for a key of a dict, or -1, without an exception, if there is none.
inline int number_in(PyObject* dict, PyObject* key) {
  PyObject* const number = without_exception(PyObject_GetItem(dict, key));
  if (number == nullptr) return -1;
  const long value = PyLong_AsLong(number);
  Py_DECREF(number);
  return static_cast<int>(value);
}

// Returns a copy that exists as long as the process, or null, with a MemoryError, if there is no
// memory. Plain `new` would link exceptions, and with them a newer glibc, into the extension.
template <class T>
T* keep(const T& value) {
  void* const memory = PyMem_Malloc(sizeof(T));
  if (memory != nullptr) return ::new (memory) T(value);
  PyErr_NoMemory();
  return nullptr;
}

// Converts a METH_FASTCALL function for a table of methods.
inline PyCFunction fast(_PyCFunctionFast function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

}  // namespace ivy::python
