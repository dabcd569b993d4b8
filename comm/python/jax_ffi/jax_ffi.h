// SPDX-License-Identifier: Apache-2.0
/* libivycomm_jax.so: collectives as handlers that XLA calls from inside a compiled program. It
 * links neither XLA nor libivycomm: the Python module ivycomm.jax gives it the addresses of
 * libivycomm's functions and registers its handlers with JAX.
 *
 * The first argument and the first result of a handler are XLA's token, which keeps calls in order;
 * arrays follow. The handler's attributes describe the call, all as 64-bit integers: `operation`
 * (ivy_jax_operation), `group` (a number from ivy_jax_set_group), `op`, `peer` (the root or the
 * destination, -1 for none), `source`, `tag`, `source_tag`, `timeout_ms`. If a buffer's size does
 * not suit the operation, the handler fails before it sends anything.
 *
 * Handlers run in XLA's threads. ivy_jax_set_functions must be called first, and once.
 */
#pragma once

#include "comm/contract/ivycomm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Numbered in the order in which ivycomm/jax/__init__.py creates its primitives. */
typedef enum ivy_jax_operation {
  IVY_JAX_ALL_REDUCE = 0,
  IVY_JAX_REDUCE = 1,
  IVY_JAX_SCAN = 2,
  IVY_JAX_BROADCAST = 3,
  IVY_JAX_ALL_GATHER = 4,
  IVY_JAX_REDUCE_SCATTER = 5,
  IVY_JAX_GATHER = 6,
  IVY_JAX_SCATTER = 7,
  IVY_JAX_ALL_TO_ALL = 8,
  IVY_JAX_BARRIER = 9,
  IVY_JAX_SEND = 10,
  IVY_JAX_RECV = 11,
  IVY_JAX_SENDRECV = 12
} ivy_jax_operation;

/* The functions of libivycomm. `struct_bytes` is the size of the caller's version of the struct. */
typedef struct ivy_jax_functions {
  size_t struct_bytes;
  int (*all_reduce_coalesced)(ivy_comm*, size_t, const void* const*, void* const*, const size_t*,
                              int, int, const ivy_call*);
  int (*reduce)(ivy_comm*, const void*, void*, size_t, int, int, int, const ivy_call*);
  int (*scan)(ivy_comm*, const void*, void*, size_t, int, int, const ivy_call*);
  int (*broadcast)(ivy_comm*, void*, size_t, int, int, const ivy_call*);
  int (*all_gather)(ivy_comm*, const void*, void*, size_t, int, const ivy_call*);
  int (*reduce_scatter)(ivy_comm*, const void*, void*, size_t, int, int, const ivy_call*);
  int (*gather)(ivy_comm*, const void*, void*, size_t, int, int, const ivy_call*);
  int (*scatter)(ivy_comm*, const void*, void*, size_t, int, int, const ivy_call*);
  int (*all_to_all)(ivy_comm*, const void*, void*, size_t, int, const ivy_call*);
  int (*barrier)(ivy_comm*, const ivy_call*);
  int (*send)(ivy_comm*, const void*, size_t, int, int, int, const ivy_call*);
  int (*recv)(ivy_comm*, void*, size_t, int, int, int, ivy_message*, const ivy_call*);
  int (*work_wait)(ivy_work*, int64_t);
  int (*work_test)(ivy_work*, int*);
  int (*work_abort)(ivy_work*);
  int (*work_free)(ivy_work*);
  const char* (*last_error)(void);
  int (*last_failure)(ivy_failure*);
} ivy_jax_functions;

/* The functions of CPython with these names. */
typedef struct ivy_jax_interpreter {
  int (*PyGILState_Ensure)(void);
  void (*PyGILState_Release)(int);
  int (*PyErr_CheckSignals)(void);
  void (*PyErr_Fetch)(void**, void**, void**);
  void (*PyErr_Restore)(void*, void*, void*);
  int (*Py_AddPendingCall)(int (*)(void*), void*);
} ivy_jax_interpreter;

/* This JAX has version 0.`minor` of XLA's interface. */
IVY_API int ivy_jax_set_functions(const ivy_jax_functions* functions,
                                  const ivy_jax_interpreter* interpreter, int minor);

/* Assigns a communicator to the number by which compiled programs know a group. If `comm` is NULL,
 * the group has ended, and programs compiled for it fail. A number must not be reused. */
IVY_API int ivy_jax_set_group(int64_t number, ivy_comm* comm, int rank, int size);

/* Returns the code of the handlers' last failure, or 0 if there was none, and copies its text and
 * details. */
IVY_API int ivy_jax_last_failure(char* text, size_t text_bytes, ivy_failure* failure);

/* XLA_FFI_Handlers, for memory of the host and of a GPU. */
IVY_API void* ivy_jax_on_host(void* frame);
IVY_API void* ivy_jax_on_gpu(void* frame);
/* A foreign function in XLA's older form that turns a token into a number, or the reverse, and does
 * nothing else. */
IVY_API void ivy_jax_pass(void* result, const void** arguments);

#ifdef __cplusplus
}
#endif
