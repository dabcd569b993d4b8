// SPDX-License-Identifier: Apache-2.0
#include "comm/group/group_segment.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace ivy::comm {
namespace {

// Large enough for the path of a segment.
constexpr std::size_t kTextBytes = 192;

class Sharing {
 public:
  Sharing(const OperationCall& call, const Membership& ranks, HostCollectives& collectives,
          const std::vector<std::int32_t>& local_ranks)
      : call_(call), ranks_(ranks), collectives_(collectives), local_ranks_(local_ranks) {}

  // Shares the memory by descriptor or by name. `error` is the same on all ranks of this host.
  bool run(bool is_named, GroupSegment& shared) {
    const auto members = static_cast<std::uint32_t>(local_ranks_.size());
    const bool takes_part = members > 1;
    const bool is_maker = takes_part && local_ranks_.front() == ranks_.rank();
    std::string own_error;
    const auto take = [&](Result<std::unique_ptr<SharedSegment>> found) {
      if (found.ok()) {
        shared.segment = std::move(found).value();
      } else {
        own_error = found.error().message + " (" + ranks_.own_member().host_name + ")";
      }
    };
    shared.segment.reset();
    if (is_maker) {
      take(is_named ? SharedSegment::create_named(members) : SharedSegment::create(members));
    }
    std::vector<std::string> paths;
    if (!exchange(shared.segment != nullptr ? shared.segment->path() : "", paths)) return false;
    if (takes_part && !is_maker) {
      const std::vector<std::int32_t>& all = ranks_.local_ranks();
      const auto maker = std::find(all.begin(), all.end(), local_ranks_.front());
      const std::string& path = paths[static_cast<std::size_t>(maker - all.begin())];
      // If there is no path, the rank that creates the segment reports the reason.
      if (!path.empty()) take(SharedSegment::attach_path(path, members));
    }
    std::vector<std::string> errors;
    if (!exchange(own_error, errors)) return false;
    if (shared.segment != nullptr) shared.segment->unlink_name();
    const auto first = std::find_if(errors.begin(), errors.end(),
                                    [](const std::string& each) { return !each.empty(); });
    shared.error = first != errors.end() ? *first : "";
    return true;
  }

  // Between hosts, sets `error` to that of the first rank that has one.
  bool agree(std::string& error) {
    if (!collectives_.spans_hosts()) return true;
    std::int32_t first = error.empty() ? ranks_.size() : ranks_.rank();
    Collective lowest;
    lowest.shape.operation = Operation::kAllReduce;
    lowest.shape.dtype = Dtype::kI32;
    lowest.shape.op = ReduceOp::kMin;
    lowest.shape.count = 1;
    lowest.send.data = &first;
    lowest.receive.data = &first;
    if (!collectives_.run(call_, lowest)) return false;
    if (first == ranks_.size()) return true;
    char text[kTextBytes] = {};
    std::memcpy(text, error.data(), std::min(error.size(), kTextBytes - 1));
    Collective spread;
    spread.shape.operation = Operation::kBroadcast;
    spread.shape.root = first;
    spread.receive = {text, kTextBytes, {}};
    if (!collectives_.run(call_, spread)) return false;
    error = text;
    return true;
  }

 private:
  // Exchanges a short text among the ranks of this host.
  bool exchange(const std::string& own, std::vector<std::string>& all) {
    const auto members = static_cast<std::size_t>(ranks_.local_size());
    std::vector<char> send(kTextBytes, 0);
    std::vector<char> receive(kTextBytes * members, 0);
    std::memcpy(send.data(), own.data(), std::min(own.size(), kTextBytes - 1));
    if (!shared_all_gather(collectives_.local(), call_, send.data(),
                           {receive.data(), 0, Blocks::even(members, kTextBytes)})) {
      return false;
    }
    for (std::size_t member = 0; member < members; ++member) {
      all.emplace_back(receive.data() + member * kTextBytes);
    }
    return true;
  }

  const OperationCall& call_;
  const Membership& ranks_;
  HostCollectives& collectives_;
  const std::vector<std::int32_t>& local_ranks_;
};

}  // namespace

bool share_group_segment(const OperationCall& call, const Membership& ranks,
                         HostCollectives& collectives, const std::vector<std::int32_t>& local_ranks,
                         GroupSegment& shared) {
  Sharing sharing(call, ranks, collectives, local_ranks);
  if (!sharing.run(false, shared)) return false;
  // Retry with a name if a rank may not open another's descriptor.
  if (!shared.error.empty() && !sharing.run(true, shared)) return false;
  return sharing.agree(shared.error);
}

}  // namespace ivy::comm
