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

// The functions of ivycomm.h that are not rows of operations.def. IVY_CALL: returns a code.
// IVY_QUERY: returns a value. methods.h derives a method of the same name from the prototype.
#define IVY_CALL_LIST(IVY_CALL, IVY_QUERY)                                                        \
  IVY_QUERY(last_error)                                                                           \
  IVY_CALL(last_failure)                                                                          \
  IVY_QUERY(code_name)                                                                            \
  IVY_QUERY(version)                                                                              \
  IVY_QUERY(abi_version)                                                                          \
  IVY_CALL(init)                                                                                  \
  IVY_CALL(finalize)                                                                              \
  IVY_QUERY(comm_rank)                                                                            \
  IVY_QUERY(comm_size)                                                                            \
  IVY_QUERY(comm_local_rank)                                                                      \
  IVY_QUERY(comm_local_size)                                                                      \
  IVY_QUERY(comm_node_rank)                                                                       \
  IVY_QUERY(comm_node_count)                                                                      \
  IVY_QUERY(comm_world_rank)                                                                      \
  IVY_QUERY(comm_source)                                                                          \
  IVY_QUERY(comm_name)                                                                            \
  IVY_CALL(comm_group)                                                                            \
  IVY_CALL(comm_group_of_members)                                                                 \
  IVY_CALL(comm_split)                                                                            \
  IVY_CALL(comm_free)                                                                             \
  IVY_CALL(comm_abort)                                                                            \
  IVY_CALL(comm_shrink)                                                                           \
  IVY_CALL(comm_grow)                                                                             \
  IVY_QUERY(restart_count)                                                                        \
  IVY_CALL(prepare_device)                                                                        \
  IVY_CALL(set_package_folders)                                                                   \
  IVY_CALL(all_reduce_coalesced)                                                                  \
  IVY_CALL(mem_alloc)                                                                             \
  IVY_CALL(mem_alloc_device)                                                                      \
  IVY_CALL(mem_window)                                                                            \
  IVY_CALL(mem_free)                                                                              \
  IVY_CALL(recv_within)                                                                           \
  IVY_CALL(group_begin)                                                                           \
  IVY_CALL(group_end)                                                                             \
  IVY_CALL(work_wait)                                                                             \
  IVY_CALL(work_hold_back)                                                                        \
  IVY_CALL(work_test)                                                                             \
  IVY_CALL(work_notify)                                                                           \
  IVY_CALL(work_abort)                                                                            \
  IVY_CALL(work_message)                                                                          \
  IVY_CALL(work_timing)                                                                           \
  IVY_CALL(work_free)                                                                             \
  IVY_CALL(store_set)                                                                             \
  IVY_CALL(store_add)                                                                             \
  IVY_CALL(store_remove)                                                                          \
  IVY_CALL(store_compare_set)                                                                     \
  IVY_CALL(store_append)                                                                          \
  IVY_CALL(store_wait)                                                                            \
  IVY_CALL(store_check)                                                                           \
  IVY_CALL(store_multi_set)                                                                       \
  IVY_CALL(store_push)                                                                            \
  IVY_CALL(store_pop)                                                                             \
  IVY_CALL(store_queue_length)                                                                    \
  IVY_CALL(store_list)                                                                            \
  IVY_CALL(store_count)                                                                           \
  IVY_CALL(store_barrier)                                                                         \
  IVY_CALL(store_why)                                                                             \
  IVY_CALL(store_watch)                                                                           \
  IVY_CALL(store_next_change)                                                                     \
  IVY_CALL(store_end_watch)

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
