// The functions of the C interface that are called here. Python has loaded the library and tells
// where they are: two loaders might find two libraries.
//
// Thread: any; set once, under the interpreter's lock.
#pragma once

#include "comm/contract/ivycomm.h"
#include "comm/python/extension/python.h"

namespace ivy::python {

// Raised where the Python package knows another one: both must come from one build.
inline constexpr int kInterface = 4;

struct Library {
  decltype(&ivy_all_reduce) all_reduce = nullptr;
  decltype(&ivy_all_reduce_coalesced) all_reduce_coalesced = nullptr;
  decltype(&ivy_broadcast) broadcast = nullptr;
  decltype(&ivy_all_gather) all_gather = nullptr;
  decltype(&ivy_reduce_scatter) reduce_scatter = nullptr;
  decltype(&ivy_barrier) barrier = nullptr;
  decltype(&ivy_reduce) reduce = nullptr;
  decltype(&ivy_scan) scan = nullptr;
  decltype(&ivy_exscan) exscan = nullptr;
  decltype(&ivy_gather) gather = nullptr;
  decltype(&ivy_all_to_all) all_to_all = nullptr;
  decltype(&ivy_send) send = nullptr;
  decltype(&ivy_recv) recv = nullptr;

  // False, and an exception set: an address is missing.
  bool take(PyObject* addresses) {
    return take(addresses, "ivy_all_reduce", all_reduce) &&
           take(addresses, "ivy_all_reduce_coalesced", all_reduce_coalesced) &&
           take(addresses, "ivy_broadcast", broadcast) &&
           take(addresses, "ivy_all_gather", all_gather) &&
           take(addresses, "ivy_reduce_scatter", reduce_scatter) &&
           take(addresses, "ivy_barrier", barrier) && take(addresses, "ivy_reduce", reduce) &&
           take(addresses, "ivy_scan", scan) && take(addresses, "ivy_exscan", exscan) &&
           take(addresses, "ivy_gather", gather) && take(addresses, "ivy_all_to_all", all_to_all) &&
           take(addresses, "ivy_send", send) && take(addresses, "ivy_recv", recv);
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
