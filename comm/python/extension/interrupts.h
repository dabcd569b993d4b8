// SPDX-License-Identifier: Apache-2.0
// A call of the library that Python's signal handlers can end. The library calls back while it
// waits. The interpreter then runs the handlers, as it does between its own steps, and an exception
// that one of them raises is kept until the library has returned.
//
// Only the main thread does this: handlers run nowhere else, and a thread that requests the
// interpreter's lock during finalization never returns.
#pragma once

#include "comm/contract/ivycomm.h"
#include "comm/python/extension/group_handles.h"
#include "comm/python/extension/python.h"
#include "comm/python/extension/tensors.h"

namespace ivy::python {

// The exception that a signal handler has raised during one call, or null.
struct Raised {
  PyObject* type = nullptr;
  PyObject* value = nullptr;
  PyObject* trace = nullptr;

  ~Raised() {
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
  }
};

// errors.check(), which connect() in calls.cc stores: raises the exception for a code.
inline PyObject* raise_error = nullptr;

inline void raise_code(int code) {
  PyObject* const number = PyLong_FromLong(code);
  PyObject* const nothing = PyObject_CallFunctionObjArgs(raise_error, number, nullptr);
  Py_XDECREF(number);
  Py_XDECREF(nothing);
  if (PyErr_Occurred() == nullptr) PyErr_Format(PyExc_RuntimeError, "ivycomm: error %d", code);
}

// Implements ivy_call.interrupt. `context` is the call's Raised.
inline int check_signals(void* context) {
  const PyGILState_STATE state = PyGILState_Ensure();
  const bool has_raised = PyErr_CheckSignals() != 0;
  if (has_raised) {
    auto* const raised = static_cast<Raised*>(context);
    Py_CLEAR(raised->type);
    Py_CLEAR(raised->value);
    Py_CLEAR(raised->trace);
    PyErr_Fetch(&raised->type, &raised->value, &raised->trace);
  }
  PyGILState_Release(state);
  return has_raised ? 1 : 0;
}

// Returns false with an exception set if the call that returned this code failed or was
// interrupted.
inline bool succeeded(int code, Raised& raised) {
  if (raised.type != nullptr) {
    PyErr_Restore(std::exchange(raised.type, nullptr), std::exchange(raised.value, nullptr),
                  std::exchange(raised.trace, nullptr));
    return false;
  }
  if (code != IVY_OK) raise_code(code);
  return code == IVY_OK;
}

// Calls the library without the interpreter's lock; every function of the module does it through
// this one. An operation on a device returns when it is on the stream. Returns false with an
// exception set.
//
// Only the main thread runs signal handlers. An asynchronous call (`work` is set) returns without
// waiting, and must not leave a pointer to this frame behind.
template <class Call>
bool call_without_lock(const Call& call, const DenseMemory& memory = {},
                       ivy_work** work = nullptr) {
  Raised raised;
  ivy_call how = {};
  how.struct_bytes = sizeof how;
  how.factor = 1.0;
  how.work = work;
  if (work == nullptr && PyThread_get_thread_ident() == main_thread) {
    how.interrupt = check_signals;
    how.interrupt_context = &raised;
  }
  if (memory.device >= 0) {
    how.stream = memory.stream;
    how.flags = (memory.is_reported ? IVY_ON_DEVICE : IVY_DEVICE_MEMORY) | IVY_ENQUEUE;
    how.device = memory.device;
  }
  PyThreadState* const state = PyEval_SaveThread();
  const int code = call(&how);
  PyEval_RestoreThread(state);
  return (code == IVY_OK && raised.type == nullptr) || succeeded(code, raised);
}

}  // namespace ivy::python
