// SPDX-License-Identifier: Apache-2.0
// The functions of the C interface that are called here. Python has loaded the library and passes
// their addresses, because two loaders might find two different libraries.
//
// Thread: any; set once, by connect(), before the first call.
#pragma once

#include "comm/contract/ivycomm.h"
#include "comm/python/extension/python.h"

namespace ivy::python {

// Version of the interface to the Python package, which rejects another number: both must be from
// one build.
inline constexpr int kInterface = 9;

// The operations whose last argument is an ivy_call: the rows of operations.def, and one more.
struct Library {
  decltype(&ivy_all_reduce_coalesced) all_reduce_coalesced = nullptr;
#define IVY_FUNCTION(function, ...) decltype(&ivy_##function) function = nullptr;
#include "proto/wire/operations.def"

  // Calls visit("ivy_all_reduce", all_reduce) and so on, until one of the calls returns true.
  template <class Visit>
  bool find(Visit visit) {
    return visit("ivy_all_reduce_coalesced", all_reduce_coalesced)
#define IVY_FUNCTION(function, ...) || visit("ivy_" #function, function)
#include "proto/wire/operations.def"
        ;
  }

  // Gets the addresses by calling address_of(name). Returns false with an exception set if one is
  // missing.
  bool take(PyObject* address_of) {
    return !find(
        [&](const char* name, auto& function) { return !take(address_of, name, function); });
  }

 private:
  template <class Function>
  static bool take(PyObject* address_of, const char* name, Function& function) {
    PyObject* const address = PyObject_CallFunction(address_of, "s", name);
    if (address == nullptr) return false;
    function = reinterpret_cast<Function>(PyLong_AsVoidPtr(address));
    Py_DECREF(address);
    return PyErr_Occurred() == nullptr;
  }
};

inline Library library;

}  // namespace ivy::python
