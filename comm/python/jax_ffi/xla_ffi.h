// SPDX-License-Identifier: Apache-2.0
/* The subset of XLA's FFI that jax_ffi.cc's handlers use, the stable C interface by which compiled
 * programs call foreign functions: xla/ffi/api/c_api.h of OpenXLA (Apache 2.0), versions 0.0
 * (jaxlib 0.4.31) to 0.3 (jaxlib 0.10.2), which lay these structs out alike. Every struct begins
 * with its size, and XLA only adds fields at the end.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace ivy::xla {

constexpr int kMajor = 0;
constexpr int kNewestMinor = 3;

enum class ElementType : int32_t {
  kPred = 1,
  kS8 = 2,
  kS16 = 3,
  kS32 = 4,
  kS64 = 5,
  kU8 = 6,
  kU16 = 7,
  kU32 = 8,
  kU64 = 9,
  kF16 = 10,
  kF32 = 11,
  kF64 = 12,
  kC64 = 15,
  kBf16 = 16,
  kToken = 17,
  kC128 = 18,
  kF8E5m2 = 19,
  kF8E4m3fn = 20,
};

/* Only one kind is defined so far. `next` of jaxlib 0.4.31 is never set. */
struct Extension {
  size_t struct_size;
  int32_t type; /* 1 stands for a MetadataExtension. */
  Extension* next;
};

struct Version {
  size_t struct_size;
  Extension* extensions;
  int32_t major_version;
  int32_t minor_version;
};

/* Filled in by a handler, which is asked once, before its first call. */
struct Metadata {
  size_t struct_size;
  Version version;
  uint32_t traits;
};

struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

struct Buffer {
  size_t struct_size;
  Extension* extensions;
  ElementType type;
  void* data;
  int64_t dimension_count;
  const int64_t* dimensions;
};

struct Text {
  const char* data;
  size_t size;
};

struct Scalar {
  ElementType type;
  const void* value;
};

/* The arguments of a call, or its results. */
struct Buffers {
  size_t struct_size;
  Extension* extensions;
  int64_t count;
  const int32_t* kinds;
  Buffer** buffers;
};

struct Attributes {
  size_t struct_size;
  Extension* extensions;
  int64_t count;
  const int32_t* kinds; /* 3 stands for a Scalar. */
  Text** names;
  void** values;
};

struct Error;

struct ErrorArguments {
  size_t struct_size;
  Extension* extensions;
  const char* message;
  int32_t code; /* Numbered as those of gRPC and ivy_code. */
};

struct Context;

struct StreamArguments {
  size_t struct_size;
  Extension* extensions;
  Context* context;
  void* stream;
};

struct Api {
  size_t struct_size;
  Extension* extensions;
  Version version;
  const void* internal;
  Error* (*create_error)(ErrorArguments*);
  void (*error_message)(void*);
  void (*destroy_error)(void*);
  Error* (*register_handler)(void*);
  Error* (*get_stream)(StreamArguments*);
};

struct CallFrame {
  size_t struct_size;
  Extension* extensions;
  const Api* api;
  Context* context;
  int32_t stage;
  Buffers arguments;
  Buffers results;
  Attributes attributes;
};

}  // namespace ivy::xla
