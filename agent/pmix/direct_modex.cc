// SPDX-License-Identifier: Apache-2.0
#include "agent/pmix/direct_modex.h"

#include <string>

namespace ivy {

void DirectModex::on_fence(bool has_data) {
  if (mode_ != Mode::kUnknown) return;
  mode_ = has_data ? Mode::kCollected : Mode::kOnDemand;
  if (mode_ == Mode::kOnDemand) actions_.publish_local_data();
  for (auto& [rank, answer] : std::exchange(early_, {})) request(rank, std::move(answer));
}

void DirectModex::request(std::uint32_t rank, BlobAnswer answer) {
  if (mode_ == Mode::kUnknown) {
    early_.emplace_back(rank, std::move(answer));
  } else if (mode_ == Mode::kOnDemand) {
    actions_.fetch_data(rank, std::move(answer));
  } else {
    answer(Error{Code::kNotFound, "rank " + std::to_string(rank) + " has not published it"});
  }
}

}  // namespace ivy
