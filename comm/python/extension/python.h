// SPDX-License-Identifier: Apache-2.0
// CPython's API, and the helpers that all files here use.
//
// Builds with the global interpreter lock get the limited API of version 3.9, so that one file
// serves all of them. Free-threaded builds have no limited API: the extension is compiled for one
// version of those.
//
// Every CPython from 3.9 on exports the buffer protocol, METH_FASTCALL and PyUnicode_AsUTF8AndSize
// in the same form, but the limited API has them from 3.11 and 3.10 on only. They are declared
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

// The buffer protocol's flags.
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

// The small number that a dict has for a key; -1, without an exception: none.
inline int number_in(PyObject* dict, PyObject* key) {
  PyObject* const number = without_exception(PyObject_GetItem(dict, key));
  if (number == nullptr) return -1;
  const long value = PyLong_AsLong(number);
  Py_DECREF(number);
  return static_cast<int>(value);
}

// A copy that stays as long as the process. Null, with a MemoryError, if there is no memory. Plain
// `new` would link exceptions, and with them a newer glibc, into the extension.
template <class T>
T* keep(const T& value) {
  void* const memory = PyMem_Malloc(sizeof(T));
  if (memory != nullptr) return ::new (memory) T(value);
  PyErr_NoMemory();
  return nullptr;
}

// A function of METH_FASTCALL in a table of methods.
inline PyCFunction fast(_PyCFunctionFast function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

}  // namespace ivy::python
