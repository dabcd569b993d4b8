// SPDX-License-Identifier: Apache-2.0
// An array of PMIx keys and values, built by libpmix because only it knows their layout. Not
// thread-safe. Lifetime: until the call that uses it has answered.
#pragma once

#include <pmix_common.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "agent/pmix/job_facts.h"
#include "agent/pmix/pmix_library.h"
#include "proto/contract/status.h"

namespace ivy {

class InfoArray {
 public:
  explicit InfoArray(const PmixLibrary& pmix) : pmix_(pmix) {}
  ~InfoArray();
  InfoArray(const InfoArray&) = delete;
  InfoArray& operator=(const InfoArray&) = delete;

  // Fails with the name of the key if libpmix rejects it.
  Result<void> add(const Fact& fact);
  // Adds a value that is an array itself, as a copy.
  Result<void> add_array(const char* key, InfoArray& values);
  Result<void> add_size(const char* key, std::size_t value) { return load(key, &value, PMIX_SIZE); }
  Result<void> add_bytes(const char* key, const std::string& bytes);
  Result<void> add_processes(const char* key, std::span<const pmix_proc_t> processes);

  pmix_info_t* data() { return infos_.data(); }
  std::size_t size() const { return infos_.size(); }

 private:
  Result<void> load(const char* key, const void* value, pmix_data_type_t type);
  Result<void> load_text(const char* key, const std::string& text, pmix_data_type_t type);
  Result<void> load_map(const char* key, const std::string& list,
                        pmix_status_t (*encode)(const char*, char**));

  const PmixLibrary& pmix_;
  std::vector<pmix_info_t> infos_;
};

}  // namespace ivy
