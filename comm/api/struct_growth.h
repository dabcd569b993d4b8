// SPDX-License-Identifier: Apache-2.0
// Structs of the C interface that grow. The caller may have been built with an older header that
// lacks the last fields, or a newer one with additional fields. Each struct starts with
// struct_bytes.
//
// Thread: any.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <type_traits>

namespace ivy::comm {

// Copies the caller's fields into `own`; fields that the caller lacks keep their values.
// `first_bytes` is the size of the struct in its first version. Returns false if struct_bytes is
// not set.
template <class Struct>
bool take_fields(const Struct& given, std::size_t first_bytes, Struct& own) {
  static_assert(std::is_trivially_copyable_v<Struct>);
  if (given.struct_bytes < first_bytes) return false;
  std::memcpy(&own, &given, std::min(given.struct_bytes, sizeof(Struct)));
  return true;
}

// Copies in the other direction, as much as the caller's struct can hold.
template <class Struct>
bool give_fields(Struct own, std::size_t first_bytes, Struct& given) {
  static_assert(std::is_trivially_copyable_v<Struct>);
  if (given.struct_bytes < first_bytes) return false;
  own.struct_bytes = given.struct_bytes;
  std::memcpy(&given, &own, std::min(own.struct_bytes, sizeof(Struct)));
  return true;
}

}  // namespace ivy::comm
