// CPython's limited API of version 3.9, and the helpers that all files here use.
//
// Every CPython from 3.9 on exports the buffer protocol, METH_FASTCALL and PyUnicode_AsUTF8AndSize
// in the same form, but the limited API has them from 3.11 and 3.10 on only. They are declared
// here.
#pragma once

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x03090000
#include <Python.h>

#include <utility>

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

// Puts a new reference into a variable that keeps it.
inline void keep(PyObject*& variable, PyObject* reference) {
  PyObject* const former = std::exchange(variable, reference);
  Py_XDECREF(former);
}

// A function of METH_FASTCALL in a table of methods.
inline PyCFunction fast(_PyCFunctionFast function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

}  // namespace ivy::python
