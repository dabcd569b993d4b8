// SPDX-License-Identifier: Apache-2.0
// The functions of the C interface that are called here. Python has loaded the library and tells
// where they are: two loaders might find two libraries.
//
// Thread: any; set once, by connect(), before the first call.
#pragma once

#include "comm/contract/ivycomm.h"
#include "comm/python/extension/python.h"

namespace ivy::python {

// Raised if the Python package has a different number: both must be from one build.
inline constexpr int kInterface = 7;

// Operations, whose last argument is an ivy_call.
#define IVY_CALLED_FUNCTIONS(each)                                                                \
  each(all_reduce) each(all_reduce_coalesced) each(broadcast) each(all_gather)                    \
      each(reduce_scatter) each(barrier) each(reduce) each(scan) each(exscan) each(gather)        \
          each(all_to_all) each(scatter) each(all_gather_v) each(reduce_scatter_v) each(gather_v) \
              each(scatter_v) each(all_to_all_v) each(send) each(recv)

struct Library {
#define IVY_POINTER(name) decltype(&ivy_##name) name = nullptr;
  IVY_CALLED_FUNCTIONS(IVY_POINTER)
#undef IVY_POINTER

  // False, and an exception set: an address is missing.
  bool take(PyObject* addresses) {
#define IVY_TAKEN(name) &&take(addresses, "ivy_" #name, name)
    return true IVY_CALLED_FUNCTIONS(IVY_TAKEN);
#undef IVY_TAKEN
  }

 private:
  template <class Function>
  static bool take(PyObject* addresses, const char* name, Function& function) {
    PyObject* const address = PyMapping_GetItemString(addresses, name);
    if (address == nullptr) return false;
    function = reinterpret_cast<Function>(PyLong_AsVoidPtr(address));
    Py_DECREF(address);
    return PyErr_Occurred() == nullptr;
  }
};

inline Library library;

}  // namespace ivy::python
