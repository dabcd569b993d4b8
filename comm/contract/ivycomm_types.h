// SPDX-License-Identifier: Apache-2.0
/* Types of libivycomm's C interface (ivycomm.h): result codes, element types, reduction
 * operations, and the structs that calls take. A struct with a `struct_bytes` field may grow in
 * later versions; the caller sets that field to the struct's size. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ivy_comm ivy_comm; /* A communicator: membership in a group of ranks. */
typedef struct ivy_work ivy_work; /* An asynchronous operation. */

/* Result codes, numbered as gRPC's. */
typedef enum ivy_code {
  IVY_OK = 0,
  IVY_CANCELLED = 1, /* ivy_comm_abort or ivy_work_abort was called, here or on another rank. */
  IVY_INVALID_ARGUMENT = 3,   /* Found before anything was sent; the communicator remains usable. */
  IVY_DEADLINE_EXCEEDED = 4,  /* The timeout expired; the text names the missing ranks. */
  IVY_NOT_FOUND = 5,          /* The job's store does not have this key. */
  IVY_RESOURCE_EXHAUSTED = 8, /* Out of memory or descriptors, or beyond a documented limit. */
  IVY_FAILED_PRECONDITION = 9, /* Not initialized, finalized, forked, or two sources disagree. */
  IVY_ABORTED = 10,            /* Ranks called different operations; the text shows both. */
  IVY_INTERNAL = 13,
  IVY_UNAVAILABLE = 14, /* A rank died or its host became unreachable; the text names it. */
  IVY_UNAUTHENTICATED = 16
} ivy_code;

/* IVY_I8 = 0, IVY_U8 = 1, ...: each row of ivycomm_operations.def defines a type or an
 * operation. */
typedef enum ivy_dtype {
#define IVY_ELEMENT(name, number, ...) IVY_##name = number,
#include "ivycomm_operations.def"
} ivy_dtype;

/* docs/collectives.md, "Reduction", defines each operation for each type. */
typedef enum ivy_op {
#define IVY_REDUCTION(name, number, ...) IVY_##name = number,
#include "ivycomm_operations.def"
} ivy_op;

#define IVY_IN_PLACE ((const void*)1)
#define IVY_ANY_SOURCE (-1)
#define IVY_ANY_TAG (-1)
#define IVY_FOREVER ((int64_t)-1)

typedef enum ivy_failure_kind {
  IVY_FAILURE_NONE = 0,
  IVY_FAILURE_RANK_DIED = 1, /* `signal` or `exit_code` has the details. */
  IVY_FAILURE_HOST_LOST = 2,
  IVY_FAILURE_MISMATCH = 3,
  IVY_FAILURE_TIMEOUT = 4,
  IVY_FAILURE_ABORTED = 5,
  IVY_FAILURE_TRANSPORT = 6,
  IVY_FAILURE_OTHER = 7
} ivy_failure_kind;

typedef struct ivy_failure {
  size_t struct_bytes; /* sizeof(ivy_failure), set by the caller. */
  int32_t kind;        /* ivy_failure_kind */
  int32_t rank;        /* World rank that caused the failure, or -1. */
  int32_t pid;         /* Process id of that rank, or 0. */
  int32_t signal;      /* Signal that killed the process, or 0. */
  int32_t exit_code;   /* Exit code of the process, or -1. */
  uint64_t sequence;   /* Number of the operation on its communicator, from 1. */
  char host[64];
  char operation[32]; /* "all_reduce" */
} ivy_failure;
typedef struct ivy_options {
  size_t struct_bytes; /* sizeof(ivy_options), set by the caller. */
  /* NULL or "env://": from the environment. "tcp://HOST:PORT": rank 0 listens there.
   * "file:///PATH": a path that all ranks can access. "self://": a world of one rank. */
  const char* init_method;
  int32_t rank; /* Taken from the environment if -1, as is `world_size`. */
  int32_t world_size;
  /* Timeout of ivy_init, and the default of all operations. 0 means 600,000; IVY_FOREVER means
   * none. */
  int64_t timeout_ms;
} ivy_options;
/* Arguments of ivy_comm_group_of_members. */
typedef struct ivy_members {
  size_t struct_bytes; /* sizeof(ivy_members), set by the caller. */
  const char* name;    /* At most 40 bytes; must not have been used in this world before. */
  const int32_t* ranks;
  int64_t timeout_ms; /* Also the default of the group's operations. 0 means the communicator's. */
  int32_t rank_count;
} ivy_members;

/* Flags of a call on device memory. */

/* The call returns once the operation is on the stream; work enqueued there later sees the result.
 * A failure after that is returned by the next call. */
#define IVY_ENQUEUE 1u
/* The call is on device memory. Needed on ranks that pass no buffer. */
#define IVY_DEVICE_MEMORY 2u
/* The buffers are memory of `device`. This is not checked, which saves a query to the driver for
 * each buffer. */
#define IVY_ON_DEVICE 4u

/* Options of one call. A null pointer means that `factor` is 1 and all other fields are zero. */
typedef struct ivy_call {
  size_t struct_bytes; /* sizeof(ivy_call), set by the caller. */
  int64_t timeout_ms;  /* 0 means the communicator's timeout. */
  ivy_work** work;     /* If not NULL, the call returns immediately and stores a handle here. */
  double factor;       /* Factor of IVY_PREMUL_SUM. */
  void* stream;   /* cudaStream_t or hipStream_t for device memory. NULL is the default stream. */
  uint64_t flags; /* IVY_ENQUEUE, IVY_DEVICE_MEMORY, IVY_ON_DEVICE. */
  /* If not NULL, this function is called about every 25 ms, on the calling thread, while a call
   * blocks, but never by a call that blocks for less than that. A result other than 0 ends the call
   * with IVY_CANCELLED and breaks the communicator, as ivy_comm_abort does. The function may call
   * ivy_comm_abort; a blocking collective that it calls on this communicator fails with
   * IVY_FAILED_PRECONDITION. */
  int (*interrupt)(void* context);
  void* interrupt_context;
  int32_t device; /* With IVY_ON_DEVICE, the device's number in the driver's order. */
} ivy_call;

typedef struct ivy_message {
  size_t struct_bytes;
  int32_t source;
  int32_t tag;
  uint64_t bytes;
} ivy_message;

/* Bytes owned by the caller, or allocated by the library and freed with ivy_bytes_free. This
 * struct never grows. */
typedef struct ivy_bytes {
  void* data; /* Only read when passed in; may be NULL if `bytes` is 0. */
  size_t bytes;
} ivy_bytes;

/* A compare-and-set in the job's store. This struct never grows. */
typedef struct ivy_swap {
  const ivy_bytes* expected; /* If NULL, the key must not exist. */
  ivy_bytes desired;
  int32_t stored;    /* Set by the call, as is `current`. */
  ivy_bytes current; /* The value afterwards; data is NULL if the key does not exist. */
} ivy_swap;

/* A barrier in the job's store. This struct never grows. */
typedef struct ivy_store_meeting {
  uint32_t size;    /* Number of members; must be the same for all members of a round. */
  uint32_t member;  /* Below `size`. A member counts once in each round. */
  uint64_t arrival; /* 0 for a new arrival; set by the call. Keep it to continue after a timeout. */
  uint64_t round;   /* Set by the call: the round's number, from 1. */
} ivy_store_meeting;

enum {
  IVY_KEY_SET = 1,
  IVY_KEY_DELETED = 2,
  IVY_KEYS_MISSED = 3 /* Earlier changes may have been missed: read the keys again. */
};

/* A change reported by a watch of the job's store. This struct never grows. */
typedef struct ivy_store_change {
  int32_t what;    /* IVY_KEY_SET, IVY_KEY_DELETED or IVY_KEYS_MISSED. */
  ivy_bytes key;   /* Allocated, as is `value`; data is NULL if the change has no key. */
  ivy_bytes value; /* The new value. */
} ivy_store_change;
#ifdef __cplusplus
}
#endif
