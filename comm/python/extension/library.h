// SPDX-License-Identifier: Apache-2.0
// The functions of the C interface that the package calls. The package decides which library is
// loaded, and open_library() loads it.
//
// Thread: any; set once, before the first call.
#pragma once

#include <dlfcn.h>

#include <type_traits>

#include "comm/contract/ivycomm.h"
#include "comm/python/extension/python.h"

// The oldest version of each, which every glibc has. The linker would choose that of glibc 2.34.
#if defined(__x86_64__)
__asm__(".symver dlopen, dlopen@GLIBC_2.2.5");
__asm__(".symver dlsym, dlsym@GLIBC_2.2.5");
__asm__(".symver dlerror, dlerror@GLIBC_2.2.5");
#elif defined(__aarch64__)
__asm__(".symver dlopen, dlopen@GLIBC_2.17");
__asm__(".symver dlsym, dlsym@GLIBC_2.17");
__asm__(".symver dlerror, dlerror@GLIBC_2.17");
#endif

// The functions of ivycomm.h that are not rows of operations.def. CALL: returns a code.
// QUERY: returns a value. methods.h derives a method of the same name from the prototype.
// clang-format off
#define IVY_CALL_LIST(CALL, QUERY) \
  QUERY(last_error) CALL(last_failure) QUERY(code_name) QUERY(version) QUERY(abi_version) \
  CALL(init) CALL(finalize) QUERY(restart_count) CALL(prepare_device) CALL(set_package_folders) \
  QUERY(comm_rank) QUERY(comm_size) QUERY(comm_local_rank) QUERY(comm_local_size) \
  QUERY(comm_node_rank) QUERY(comm_node_count) QUERY(comm_world_rank) QUERY(comm_source) \
  QUERY(comm_name) CALL(comm_group) CALL(comm_group_of_members) CALL(comm_split) CALL(comm_free) \
  CALL(comm_abort) CALL(comm_shrink) CALL(comm_grow) CALL(all_reduce_coalesced) CALL(recv_within) \
  CALL(group_begin) CALL(group_end) \
  CALL(mem_alloc) CALL(mem_alloc_device) CALL(mem_window) CALL(mem_free) \
  CALL(work_wait) CALL(work_hold_back) CALL(work_test) CALL(work_notify) CALL(work_abort) \
  CALL(work_message) CALL(work_timing) CALL(work_free) \
  CALL(store_set) CALL(store_add) CALL(store_remove) CALL(store_compare_set) CALL(store_append) \
  CALL(store_wait) CALL(store_check) CALL(store_multi_set) CALL(store_push) CALL(store_pop) \
  CALL(store_queue_length) CALL(store_list) CALL(store_count) CALL(store_barrier) \
  CALL(store_why) CALL(store_watch) CALL(store_next_change) CALL(store_end_watch)
// clang-format on

namespace ivy::python {

// Version of the interface to the Python package, which rejects another number: both must be from
// one build.
inline constexpr int kInterface = 10;

struct Library {
  decltype(&ivy_bytes_free) bytes_free = nullptr;
  decltype(&ivy_store_get) store_get = nullptr;
  decltype(&ivy_store_multi_get) store_multi_get = nullptr;
#define IVY_FUNCTION(function, ...) decltype(&ivy_##function) function = nullptr;
#include "proto/wire/operations.def"
#define IVY_MEMBER(function) decltype(&ivy_##function) function = nullptr;
  IVY_CALL_LIST(IVY_MEMBER, IVY_MEMBER)
#undef IVY_MEMBER

  // Finds the functions. Returns the name of one that the library lacks, or null.
  const char* find_in(void* opened) {
    const char* missing = nullptr;
    const auto find = [&](const char* name, auto& function) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(opened, name));
      if (function == nullptr) missing = name;
    };
    find("ivy_bytes_free", bytes_free);
    find("ivy_store_get", store_get);
    find("ivy_store_multi_get", store_multi_get);
#define IVY_FUNCTION(function, ...) find("ivy_" #function, function);
#include "proto/wire/operations.def"
#define IVY_MEMBER(function) find("ivy_" #function, function);
    IVY_CALL_LIST(IVY_MEMBER, IVY_MEMBER)
#undef IVY_MEMBER
    return missing;
  }
};

inline Library library;

// Implements open_library(path). Raises OSError with the loader's reason, or ImportError if the
// library is from another build. The library is never closed: its threads may outlive the caller.
inline PyObject* open_library(PyObject*, PyObject* arguments) {
  const char* path = nullptr;
  if (PyArg_ParseTuple(arguments, "s", &path) == 0) return nullptr;
  void* const opened = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (opened == nullptr) return PyErr_Format(PyExc_OSError, "%s", dlerror());
  Library found;
  const char* const missing = found.find_in(opened);
  if (missing != nullptr) {
    return PyErr_Format(PyExc_ImportError,
                        "%s has no %s: it is from a different build than ivycomm, but both must "
                        "come from the same build",
                        path, missing);
  }
  library = found;
  return new_reference(Py_None);
}

}  // namespace ivy::python
