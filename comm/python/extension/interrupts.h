// A call of the library that signal handlers of Python can end. The library asks while it waits;
// the interpreter then runs the handlers, as it does between two of its own steps, and what one of
// them raises is kept until the library has returned.
//
// Only the main thread is asked: handlers run nowhere else, and a thread that asks for the
// interpreter's lock while the interpreter ends never comes back.
#pragma once

#include "comm/contract/ivycomm.h"
#include "comm/python/extension/python.h"
#include "comm/python/extension/tensors.h"

namespace ivy::python {

// What a handler has raised; all null: nothing. Under the interpreter's lock.
struct Raised {
  PyObject* type = nullptr;
  PyObject* value = nullptr;
  PyObject* trace = nullptr;
};
inline Raised raised;

inline PyObject* raise_error = nullptr;  // Called with a code, raises the exception for it.
inline Py_ssize_t calls_under_way = 0;
inline unsigned long main_thread = 0;

// The function that ivy_call.interrupt points to.
inline int ask_for_signals(void*) {
  const PyGILState_STATE state = PyGILState_Ensure();
  const bool has_raised = PyErr_CheckSignals() != 0;
  if (has_raised) {
    Py_CLEAR(raised.type);
    Py_CLEAR(raised.value);
    Py_CLEAR(raised.trace);
    PyErr_Fetch(&raised.type, &raised.value, &raised.trace);
  }
  PyGILState_Release(state);
  return has_raised ? 1 : 0;
}

inline constexpr ivy_call kInMainThread = {sizeof(ivy_call), 0,       nullptr, 1.0, nullptr, 0,
                                           ask_for_signals,  nullptr, 0};
inline constexpr ivy_call kElsewhere = {sizeof(ivy_call), 0,       nullptr, 1.0, nullptr, 0,
                                        nullptr,          nullptr, 0};

// False, and an exception set, where the call that returned this code did not end well.
inline bool ended_well(int code) {
  const bool is_main = PyThread_get_thread_ident() == main_thread;
  if (is_main && raised.type != nullptr) {
    const Raised now = std::exchange(raised, {});
    PyErr_Restore(now.type, now.value, now.trace);
    return false;
  }
  if (code == IVY_OK) return true;
  PyObject* const number = PyLong_FromLong(code);
  PyObject* const nothing = PyObject_CallFunctionObjArgs(raise_error, number, nullptr);
  Py_XDECREF(number);
  Py_XDECREF(nothing);
  if (PyErr_Occurred() == nullptr) PyErr_Format(PyExc_RuntimeError, "ivycomm: error %d", code);
  return false;
}

// Calls the library without the interpreter's lock; an operation on a device returns when it is on
// the stream. False: an exception is set.
template <class Call>
bool carry_out(const Call& call, const DenseMemory& memory = {}) {
  const bool is_main = PyThread_get_thread_ident() == main_thread;
  ivy_call how = is_main ? kInMainThread : kElsewhere;
  if (memory.device >= 0) {
    how.stream = memory.stream;
    how.flags = (memory.is_told ? IVY_ON_DEVICE : IVY_DEVICE_MEMORY) | IVY_ENQUEUE;
    how.device = memory.device;
  }
  ++calls_under_way;
  PyThreadState* const state = PyEval_SaveThread();
  const int code = call(&how);
  PyEval_RestoreThread(state);
  --calls_under_way;
  return (code == IVY_OK && raised.type == nullptr) || ended_well(code);
}

// Implements settle(code), for calls that ctypes has made.
inline PyObject* settle(PyObject*, PyObject* code) {
  const long number = PyLong_AsLong(code);
  if (number == -1 && PyErr_Occurred() != nullptr) return nullptr;
  return ended_well(static_cast<int>(number)) ? Py_NewRef(Py_None) : nullptr;
}

inline PyObject* count_inside(PyObject*, PyObject*) { return PyLong_FromSsize_t(calls_under_way); }

}  // namespace ivy::python
