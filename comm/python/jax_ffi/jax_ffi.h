// SPDX-License-Identifier: Apache-2.0
/* libivycomm_jax.so: collectives as handlers that XLA calls from inside a compiled program. It
 * links neither XLA nor libivycomm: the Python module ivycomm.jax gives it the addresses of
 * libivycomm's functions and registers its handlers with JAX.
 *
 * A handler takes and gives first what keeps the order (XLA's token), then arrays; what is done is
 * in its attributes, all 64-bit integers: `operation` (ivy_jax_operation), `group` (as
 * ivy_jax_set_group numbers them), `op`, `peer` (root, or to whom is sent; -1: nobody), `source`,
 * `tag`, `source_tag`, `timeout_ms`. Buffers of another size than the operation wants are an error
 * before anything is sent.
 *
 * Threads: those of XLA. ivy_jax_set_functions is called once, before all else.
 */
#pragma once

#include "comm/contract/ivycomm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* They are numbered in the order in which ivycomm/jax/__init__.py makes its primitives. */
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

/* The functions of libivycomm; `struct_bytes` says how many the caller knows. */
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

/* The functions of the interpreter that have these names. */
typedef struct ivy_jax_interpreter {
  int (*PyGILState_Ensure)(void);
  void (*PyGILState_Release)(int);
  int (*PyErr_CheckSignals)(void);
  void (*PyErr_Fetch)(void**, void**, void**);
  void (*PyErr_Restore)(void*, void*, void*);
  int (*Py_AddPendingCall)(int (*)(void*), void*);
} ivy_jax_interpreter;

/* `minor`: of the version 0.minor of XLA's interface that this JAX has. */
IVY_API int ivy_jax_set_functions(const ivy_jax_functions* functions,
                                  const ivy_jax_interpreter* interpreter, int minor);

/* Compiled programs know a group by its number. comm NULL: the group has ended, and programs that
 * were compiled for it fail. A number is never used for a second group. */
IVY_API int ivy_jax_set_group(int64_t number, ivy_comm* comm, int rank, int size);

/* The last failure of a handler: its code (0: there was none), text and ivy_failure. */
IVY_API int ivy_jax_last_failure(char* text, size_t text_bytes, ivy_failure* failure);

/* For XLA: an XLA_FFI_Handler each, of memory of the host and of a GPU. */
IVY_API void* ivy_jax_on_host(void* frame);
IVY_API void* ivy_jax_on_gpu(void* frame);
/* Also for XLA, in its older form of a foreign function: does nothing, between a token and a
 * number. */
IVY_API void ivy_jax_pass(void* result, const void** arguments);

#ifdef __cplusplus
}
#endif
