// CPython's limited API, and what all files here do with it.
#pragma once

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <utility>

namespace ivy::python {

// Puts a new reference into a variable that keeps it.
inline void keep(PyObject*& variable, PyObject* reference) {
  Py_XDECREF(std::exchange(variable, reference));
}

// A function of METH_FASTCALL in a table of methods.
inline PyCFunction fast(_PyCFunctionFast function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

}  // namespace ivy::python
