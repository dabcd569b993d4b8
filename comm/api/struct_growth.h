// Structs of the C interface that grow: the caller's may be of an older header, which lacks the
// last fields, or of a newer one, which has some that are not known here. Each begins with
// struct_bytes.
//
// Thread: any; values.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <type_traits>

namespace ivy::comm {

// Copies the caller's fields into `own`; fields that the caller lacks keep their values.
// `first_bytes`: the struct's size in the first version. False: struct_bytes is not set.
template <class Struct>
bool take_fields(const Struct& given, std::size_t first_bytes, Struct& own) {
  static_assert(std::is_trivially_copyable_v<Struct>);
  if (given.struct_bytes < first_bytes) return false;
  std::memcpy(&own, &given, std::min(given.struct_bytes, sizeof(Struct)));
  return true;
}

// Copies the other way, as much as the caller's struct has room for.
template <class Struct>
bool give_fields(Struct own, std::size_t first_bytes, Struct& given) {
  static_assert(std::is_trivially_copyable_v<Struct>);
  if (given.struct_bytes < first_bytes) return false;
  own.struct_bytes = given.struct_bytes;
  std::memcpy(&given, &own, std::min(own.struct_bytes, sizeof(Struct)));
  return true;
}

}  // namespace ivy::comm
