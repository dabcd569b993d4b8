// SPDX-License-Identifier: Apache-2.0
#include "proto/contract/log_names.h"

#include "proto/contract/text.h"

namespace ivy {

std::string log_folder(const std::string& directory, const std::string& job_id,
                       std::uint32_t generation) {
  return directory + "/" + job_id + "/" + std::to_string(generation);
}

std::string log_file_name(int rank, int stream) {
  return "rank" + zero_padded(static_cast<std::uint64_t>(rank), 5) +
         (stream == 2 ? ".err" : ".out");
}

}  // namespace ivy
