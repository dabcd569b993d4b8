// SPDX-License-Identifier: Apache-2.0
#include "agent/pmix/info_array.h"

#include <cstdlib>
#include <variant>

namespace ivy {

InfoArray::~InfoArray() {
  for (pmix_info_t& info : infos_) pmix_.value_destruct(&info.value);
}

Result<void> InfoArray::load(const char* key, const void* value, pmix_data_type_t type) {
  infos_.push_back({});
  const pmix_status_t status = pmix_.info_load(&infos_.back(), key, value, type);
  if (status == PMIX_SUCCESS) return {};
  infos_.pop_back();
  return Error{Code::kInternal,
               std::string("libpmix does not accept ") + key + ": " + pmix_.text_of(status)};
}

Result<void> InfoArray::load_text(const char* key, const std::string& text, pmix_data_type_t type) {
  return load(key, text.c_str(), type);
}

Result<void> InfoArray::load_map(const char* key, const std::string& list,
                                 pmix_status_t (*encode)(const char*, char**)) {
  char* encoded = nullptr;
  const pmix_status_t status = encode(list.c_str(), &encoded);
  if (status != PMIX_SUCCESS)
    return Error{Code::kInternal,
                 "libpmix cannot encode \"" + list + "\": " + pmix_.text_of(status)};
  const Result<void> loaded = load(key, encoded, PMIX_REGEX);
  std::free(encoded);
  return loaded;
}

Result<void> InfoArray::add(const Fact& fact) {
  if (const auto* map = std::get_if<NodeMap>(&fact.value))
    return load_map(fact.key, map->list, pmix_.generate_regex);
  if (const auto* map = std::get_if<RankMap>(&fact.value))
    return load_map(fact.key, map->lists, pmix_.generate_ppn);
  if (const auto* text = std::get_if<std::string>(&fact.value))
    return load_text(fact.key, *text, PMIX_STRING);
  if (const auto* rank = std::get_if<RankNumber>(&fact.value))
    return load(fact.key, &rank->value, PMIX_PROC_RANK);
  if (const auto* number = std::get_if<std::uint32_t>(&fact.value))
    return load(fact.key, number, PMIX_UINT32);
  if (const auto* number = std::get_if<std::uint16_t>(&fact.value))
    return load(fact.key, number, PMIX_UINT16);
  return load(fact.key, &std::get<bool>(fact.value), PMIX_BOOL);
}

Result<void> InfoArray::add_array(const char* key, InfoArray& values) {
  pmix_data_array_t array = {};
  array.type = PMIX_INFO;
  array.size = values.size();
  array.array = values.data();
  return load(key, &array, PMIX_DATA_ARRAY);
}

Result<void> InfoArray::add_bytes(const char* key, const std::string& bytes) {
  pmix_byte_object_t object = {};
  object.bytes = const_cast<char*>(bytes.data());  // libpmix makes a copy of it.
  object.size = bytes.size();
  return load(key, &object, PMIX_BYTE_OBJECT);
}

Result<void> InfoArray::add_processes(const char* key, std::span<const pmix_proc_t> processes) {
  pmix_data_array_t array = {};
  array.type = PMIX_PROC;
  array.size = processes.size();
  array.array = const_cast<pmix_proc_t*>(processes.data());  // libpmix makes a copy of it.
  return load(key, &array, PMIX_DATA_ARRAY);
}

}  // namespace ivy
