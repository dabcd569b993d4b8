// SPDX-License-Identifier: Apache-2.0
// The functions of HostCollectives that reduce: the steps between hosts. The steps inside a host
// are in shared_reduce.cc.
#include <algorithm>
#include <cstring>
#include <vector>

#include "comm/collectives/host_collectives.h"
#include "comm/collectives/shared_parts.h"
#include "comm/reduce/identity.h"

namespace ivy::comm {

using shared_parts::at;
using shared_parts::divide_up;
using shared_parts::reduce_own;
using shared_parts::Slice;
using shared_parts::slice_of;

namespace {

using Bytes = std::vector<std::uint8_t>;

void reach_size(Bytes& bytes, std::size_t size) {
  if (bytes.size() < size) bytes.resize(size);
}

// Destination of a result's elements.
struct HostsResult {
  void* to = nullptr;
  std::size_t count = 0;
};

// Reduces the hosts' results, in the given form, to elements.
void reduce_hosts(const ReduceRule& rule, Form form, const std::vector<const void*>& inputs,
                  const HostsResult& result) {
  Reduction reduction;
  reduction.dtype = rule.dtype;
  reduction.op = rule.op;
  reduction.input_form = form;
  reduction.divisor = rule.divisor;
  reduce(reduction, {inputs.data(), inputs.size(), result.to, nullptr, result.count});
}

ReduceRule partial_rule(ReduceRule rule) {
  rule.output_form = Form::kPartial;
  return rule;
}

Vectors vectors_of(const ReduceRule& rule, const Collective& collective) {
  return {rule, collective.send.data, collective.receive.data, collective.shape.count};
}

// Returns the blocks of a reduce_scatter in elements.
Ranges ranges_of(const Collective& collective) {
  const Blocks& blocks = collective.send.blocks;
  if (collective.shape.operation == Operation::kReduceScatter) {
    return Ranges::even(blocks.size(), collective.shape.count);
  }
  const std::size_t element = element_bytes(collective.shape.dtype);
  std::vector<Range> ranges(blocks.size());
  for (std::size_t rank = 0; rank < ranges.size(); ++rank) {
    ranges[rank] = {blocks[rank].offset / element, blocks[rank].bytes / element};
  }
  return ranges;
}

}  // namespace

ReduceRule HostCollectives::rule_of(const Collective& collective) const {
  ReduceRule rule;
  rule.dtype = collective.shape.dtype;
  rule.op = collective.shape.op;
  rule.divisor = map_.rank_count();
  rule.factor = collective.factor;
  return rule;
}

// Ranks may send plain elements only if no host reduces them first.
HostCollectives::Wire HostCollectives::wire_of(const ReduceRule& rule) const {
  const bool is_one_rank_each = map_.host_count() == map_.rank_count();
  if (is_one_rank_each && rule.op != ReduceOp::kPremulSum) {
    return {Form::kElement, rule.input_bytes()};
  }
  return {Form::kPartial, partial_bytes(rule.dtype, rule.op)};
}

std::size_t HostCollectives::elements_in(std::size_t piece_bytes, const ReduceRule& rule) {
  return std::max<std::size_t>(1, piece_bytes / rule.input_bytes());
}

bool HostCollectives::all_reduce(const OperationCall& call, const Collective& collective) {
  if (collective.shape.has_parts) return all_reduce_parts(call, collective);
  const ReduceRule rule = rule_of(collective);
  return all_reduce_vector(call, vectors_of(rule, collective));
}

bool HostCollectives::all_reduce_vector(const OperationCall& call, const Vectors& vectors) {
  if (!spans_hosts()) return shared_all_reduce(local_, call, vectors);
  if (vectors.bytes() <= max_whole_bytes_) return all_reduce_whole(call, vectors);
  return all_reduce_sliced(call, vectors);
}

bool HostCollectives::all_reduce_whole(const OperationCall& call, const Vectors& vectors) {
  const auto& [rule, send, receive, count] = vectors;
  const Wire wire = wire_of(rule);
  Bytes own(wire.is_raw() ? 0 : count * wire.element);
  const void* const wire_input = wire.is_raw() ? send : own.data();
  const ReduceRule inside = partial_rule(rule);
  if (!wire.is_raw() && !shared_reduce(local_, call, {inside, send, own.data(), count}, 0)) {
    return false;
  }
  if (map_.own_member() == 0 && !exchange_whole(call, vectors, wire_input)) return false;
  return shared_broadcast(local_, call, {receive, vectors.bytes(), {}}, 0);
}

// Sends this host's whole result to every other host, and reduces theirs.
bool HostCollectives::exchange_whole(const OperationCall& call, const Vectors& vectors,
                                     const void* wire_input) {
  const auto& [rule, send, receive, count] = vectors;
  const Wire wire = wire_of(rule);
  const std::size_t bytes = count * wire.element;
  // Not if in place, because the data would be overwritten before it was sent.
  const bool on_arrival = map_.host_count() == 2 && send != receive && count > 0;
  const TakePart take = [&](std::size_t begin, std::size_t end, const std::uint8_t* part) {
    std::vector<const void*> parts(2, at(wire_input, begin));
    parts[1 - map_.own_host()] = part;
    void* const to = at(vectors.receive, begin / wire.element * vectors.rule.input_bytes());
    reduce_hosts(vectors.rule, wire.form, parts, {to, (end - begin) / wire.element});
  };
  Bytes& peer_data = peer_scratch_;
  if (!on_arrival) reach_size(peer_data, bytes * map_.host_count());
  std::vector<Outgoing> outgoing;
  std::vector<Incoming> incoming;
  std::vector<const void*> inputs(map_.host_count(), wire_input);
  for (std::uint32_t step = 1; step < map_.host_count(); ++step) {
    const std::uint32_t host = (map_.own_host() + step) % map_.host_count();
    outgoing.push_back({rank_at(host, 0), wire_input, bytes, 0});
    if (on_arrival) {
      incoming.push_back({rank_at(host, 0), nullptr, bytes, 0, &take});
    } else {
      inputs[host] = peer_data.data() + host * bytes;
      incoming.push_back({rank_at(host, 0), peer_data.data() + host * bytes, bytes, 0});
    }
  }
  if (!exchange(call, outgoing, incoming)) return false;
  if (!on_arrival) reduce_hosts(rule, wire.form, inputs, {receive, count});
  return true;
}

// A large all_reduce in chunks. While the hosts exchange their slices of one chunk, they distribute
// the results of the previous one.
class HostCollectives::Column {
 public:
  Column(HostCollectives& group, const OperationCall& call, const Vectors& vectors)
      : group_(group),
        map_(group.map_),
        call_(call),
        rule_(vectors.rule),
        send_(vectors.send),
        receive_(vectors.receive),
        count_(vectors.count),
        wire_(group.wire_of(rule_)),
        chunk_(elements_in(kAllReducePieceBytes, rule_)),
        own_(group.own_scratch_),
        peer_data_(group.peer_scratch_) {
    columns_ = map_.rank_count();
    for (const std::vector<std::int32_t>& host : map_.hosts) {
      columns_ = std::min(columns_, static_cast<std::uint32_t>(host.size()));
    }
  }

  bool run() {
    const std::size_t chunks = divide_up(count_, chunk_);
    for (std::size_t chunk = 0; chunk <= chunks; ++chunk) {
      const bool has_new = chunk < chunks;
      const bool has_old = chunk > 0;
      if (has_new && !reduce_inside(chunk)) return false;
      if (is_in_column()) {
        if (!exchange(chunk, has_new, has_old)) return false;
        if (has_new && !reduces_on_arrival()) reduce_between(chunk);
      }
      if (has_old && !share_inside(chunk - 1)) return false;
    }
    return true;
  }

 private:
  bool is_in_column() const { return map_.own_member() < columns_; }
  // Returns whether there is one other host, so that each part can be reduced on arrival, while it
  // is in the caches.
  bool reduces_on_arrival() const { return map_.host_count() == 2; }
  std::size_t elements(std::size_t chunk) const {
    return std::min(chunk_, count_ - chunk * chunk_);
  }
  // Returns a column's slice of a chunk, in elements of the whole vector.
  Slice column_slice(std::size_t chunk, std::uint32_t column) const {
    Slice slice = slice_of(elements(chunk), rule_.input_bytes(), columns_, column);
    slice.begin += chunk * chunk_;
    return slice;
  }
  // Returns a host's part of this column's slice, relative to the slice.
  Slice host_part(const Slice& slice, std::uint32_t host) const {
    return slice_of(slice.count, rule_.input_bytes(), map_.host_count(), host);
  }
  std::uint8_t* result(std::size_t element) const {
    return at(receive_, element * rule_.input_bytes());
  }

  // Leaves this host's result of its own slice in own_ (or in place, if nothing needs to be
  // reduced).
  bool reduce_inside(std::size_t chunk) {
    std::vector<Range> ranges(group_.members());
    for (std::uint32_t column = 0; column < columns_; ++column) {
      const Slice slice = column_slice(chunk, column);
      ranges[column] = {slice.begin, slice.count};
    }
    const Range own = ranges[map_.own_member()];
    if (wire_.is_raw()) return true;
    reach_size(own_, own.count * wire_.element);
    return group_.reduce_inside(call_, {rule_, send_, own_.data(), 0}, ranges);
  }

  const std::uint8_t* wire_input(const Slice& slice, const Slice& part) const {
    return wire_.is_raw() ? at(send_, (slice.begin + part.begin) * wire_.element)
                          : own_.data() + part.begin * wire_.element;
  }

  static std::uint32_t step_of(std::size_t chunk, std::uint32_t phase) {
    return static_cast<std::uint32_t>(chunk * 2 + phase);
  }

  // Calls visit(host, rank) for the ranks of this column on the other hosts, starting after this
  // host.
  template <class Visit>
  void each_other_host(Visit visit) const {
    for (std::uint32_t distance = 1; distance < map_.host_count(); ++distance) {
      const std::uint32_t host = (map_.own_host() + distance) % map_.host_count();
      visit(host, group_.rank_at(host, map_.own_member()));
    }
  }

  bool exchange(std::size_t chunk, bool has_new, bool has_old) {
    outgoing_.clear();
    incoming_.clear();
    if (has_old) distribute_results(chunk - 1);
    if (has_new) exchange_slices(chunk);
    return group_.exchange(call_, outgoing_, incoming_);
  }

  void distribute_results(std::size_t chunk) {
    const Slice slice = column_slice(chunk, map_.own_member());
    const Slice own = host_part(slice, map_.own_host());
    const std::size_t element = rule_.input_bytes();
    each_other_host([&](std::uint32_t host, std::int32_t rank) {
      const Slice part = host_part(slice, host);
      outgoing_.push_back(
          {rank, result(slice.begin + own.begin), own.count * element, step_of(chunk, 1)});
      incoming_.push_back(
          {rank, result(slice.begin + part.begin), part.count * element, step_of(chunk, 1)});
    });
  }

  void exchange_slices(std::size_t chunk) {
    const Slice slice = column_slice(chunk, map_.own_member());
    const Slice own = host_part(slice, map_.own_host());
    const std::size_t bytes = own.count * wire_.element;
    if (reduces_on_arrival()) {
      take_ = [this, slice, own](std::size_t begin, std::size_t end, const std::uint8_t* part) {
        const Slice arrived = {begin / wire_.element, (end - begin) / wire_.element};
        reduce_part(slice, own, arrived, part);
      };
    } else {
      reach_size(peer_data_, bytes * map_.host_count());
    }
    each_other_host([&](std::uint32_t host, std::int32_t rank) {
      const Slice part = host_part(slice, host);
      outgoing_.push_back(
          {rank, wire_input(slice, part), part.count * wire_.element, step_of(chunk, 0)});
      Incoming peer_data = {rank, nullptr, bytes, step_of(chunk, 0)};
      if (reduces_on_arrival()) {
        peer_data.take = &take_;
      } else {
        peer_data.data = peer_data_.data() + host * bytes;
      }
      incoming_.push_back(peer_data);
    });
  }

  void reduce_between(std::size_t chunk) {
    const Slice slice = column_slice(chunk, map_.own_member());
    const Slice own = host_part(slice, map_.own_host());
    if (own.count == 0) return;
    std::vector<const void*> inputs(map_.host_count());
    for (std::uint32_t host = 0; host < map_.host_count(); ++host) {
      inputs[host] = host == map_.own_host() ? wire_input(slice, own)
                                             : peer_data_.data() + host * own.count * wire_.element;
    }
    reduce_hosts(rule_, wire_.form, inputs, {result(slice.begin + own.begin), own.count});
  }

  // Reduces the elements of this host's part that have arrived from the other host.
  void reduce_part(const Slice& slice, const Slice& own, const Slice& arrived,
                   const std::uint8_t* peer_data) {
    std::vector<const void*> inputs(2, wire_input(slice, own) + arrived.begin * wire_.element);
    inputs[1 - map_.own_host()] = peer_data;
    reduce_hosts(rule_, wire_.form, inputs,
                 {result(slice.begin + own.begin + arrived.begin), arrived.count});
  }

  bool share_inside(std::size_t chunk) {
    if (group_.local_ == nullptr) return true;
    std::vector<Block> blocks(group_.members());
    const std::size_t element = rule_.input_bytes();
    for (std::uint32_t column = 0; column < columns_; ++column) {
      const Slice slice = column_slice(chunk, column);
      blocks[column] = {slice.begin * element, slice.count * element};
    }
    return shared_all_gather(group_.local_, call_, at(receive_, blocks[map_.own_member()].offset),
                             {receive_, 0, blocks});
  }

  HostCollectives& group_;
  const HostMap& map_;
  const OperationCall& call_;
  const ReduceRule& rule_;
  const void* const send_;
  void* const receive_;
  const std::size_t count_;
  const Wire wire_;
  const std::size_t chunk_;  // In elements, like all sizes here.
  std::uint32_t columns_ = 1;
  Bytes& own_;
  Bytes& peer_data_;
  std::vector<Outgoing> outgoing_;
  std::vector<Incoming> incoming_;
  TakePart take_;
};

bool HostCollectives::all_reduce_sliced(const OperationCall& call, const Vectors& vectors) {
  return Column(*this, call, vectors).run();
}

// Reduces one piece after the other: inside each host to its delegate, then from the delegates to
// the root.
bool HostCollectives::reduce(const OperationCall& call, const Collective& collective) {
  const ReduceRule rule = rule_of(collective);
  const Vectors whole = vectors_of(rule, collective);
  const std::int32_t root = collective.shape.root;
  if (!spans_hosts()) return shared_reduce(local_, call, whole, member_of(root));
  const std::size_t piece = elements_in(kReducePieceBytes, rule);
  const std::size_t pieces = std::max<std::size_t>(1, divide_up(whole.count, piece));
  Bytes own;
  for (std::size_t index = 0; index < pieces; ++index) {
    const std::size_t begin = index * piece * rule.input_bytes();
    const Vectors vectors = {rule, at(whole.send, begin), at(whole.receive, begin),
                             std::min(piece, whole.count - index * piece)};
    if (!reduce_to_delegate(call, vectors, root, own)) return false;
    const void* const wire_input = wire_of(rule).is_raw() ? vectors.send : own.data();
    if (!reduce_to_root(call, vectors, {root, wire_input, static_cast<std::uint32_t>(index)})) {
      return false;
    }
  }
  return true;
}

std::int32_t HostCollectives::delegate_of(std::uint32_t host, std::int32_t root) const {
  return host == map_.host_of[static_cast<std::size_t>(root)] ? root : rank_at(host, 0);
}

// Leaves this host's partials in `made` on its delegate.
bool HostCollectives::reduce_to_delegate(const OperationCall& call, const Vectors& vectors,
                                         std::int32_t root, std::vector<std::uint8_t>& made) {
  const auto& [rule, send, receive, count] = vectors;
  const Wire wire = wire_of(rule);
  if (wire.is_raw()) return true;
  made.resize(count * wire.element);
  const ReduceRule inside = partial_rule(rule);
  return shared_reduce(local_, call, {inside, send, made.data(), count},
                       member_of(delegate_of(map_.own_host(), root)));
}

bool HostCollectives::reduce_to_root(const OperationCall& call, const Vectors& vectors,
                                     const HostResult& own) {
  const Wire wire = wire_of(vectors.rule);
  const std::size_t bytes = vectors.count * wire.element;
  if (delegate_of(map_.own_host(), own.root) != map_.self) return true;
  if (map_.self != own.root) return exchange(call, {{own.root, own.data, bytes, own.step}}, {});
  Bytes& peer_data = peer_scratch_;
  reach_size(peer_data, bytes * map_.host_count());
  std::vector<Incoming> incoming;
  std::vector<const void*> inputs(map_.host_count(), own.data);
  for (std::uint32_t host = 0; host < map_.host_count(); ++host) {
    if (host == map_.own_host()) continue;
    inputs[host] = peer_data.data() + host * bytes;
    incoming.push_back(
        {delegate_of(host, own.root), peer_data.data() + host * bytes, bytes, own.step});
  }
  if (!exchange(call, {}, incoming)) return false;
  reduce_hosts(vectors.rule, wire.form, inputs, {vectors.receive, vectors.count});
  return true;
}

// A reduce_scatter, one piece of every rank's range after the other. Each host reduces the pieces
// for all ranks, in rounds of as many ranks as it has members, and sends each to the rank that owns
// it.
class HostCollectives::ReduceScatter {
 public:
  ReduceScatter(HostCollectives& group, const OperationCall& call, const Vectors& vectors,
                const Ranges& whole)
      : group_(group),
        map_(group.map_),
        call_(call),
        rule_(vectors.rule),
        send_(vectors.send),
        receive_(vectors.receive),
        whole_(whole),
        wire_(group.wire_of(rule_)),
        piece_(elements_in(kReduceScatterPieceBytes, rule_)) {}

  bool run() {
    const std::size_t pieces = std::max<std::size_t>(1, divide_up(whole_.longest(), piece_));
    for (std::size_t index = 0; index < pieces; ++index) {
      index_ = index;
      if (!reduce_inside() || !reduce_between()) return false;
    }
    return true;
  }

 private:
  const std::uint8_t* input(const Range& range) const {
    return at(send_, range.begin * rule_.input_bytes());
  }
  std::uint32_t step() const { return static_cast<std::uint32_t>(index_); }
  // Returns the current piece of a rank's range.
  Range piece_of(std::int32_t rank) const {
    const Range all = whole_[static_cast<std::size_t>(rank)];
    const std::size_t begin = std::min(index_ * piece_, all.count);
    return {all.begin + begin, std::min(piece_, all.count - begin)};
  }

  // Computes this host's results for the ranks of all hosts.
  bool reduce_inside() {
    outgoing_.clear();
    rounds_ = 0;
    for (std::uint32_t host = 0; host < map_.host_count(); ++host) {
      for (std::uint32_t first = 0; first < map_.hosts[host].size(); first += group_.members()) {
        if (!reduce_round(host, first)) return false;
      }
    }
    return true;
  }

  // Computes this member's result of one round, for the rank at this member's position among the
  // round's ranks of that host.
  bool reduce_round(std::uint32_t host, std::uint32_t first) {
    const auto size = static_cast<std::uint32_t>(map_.hosts[host].size());
    std::vector<Range> ranges(group_.members());
    for (std::uint32_t member = 0; member < ranges.size() && first + member < size; ++member) {
      ranges[member] = piece_of(group_.rank_at(host, first + member));
    }
    const Range own_range = ranges[map_.own_member()];
    const void* result = input(own_range);
    if (!wire_.is_raw()) {
      if (results_.size() <= rounds_) results_.emplace_back();
      Bytes& made = results_[rounds_++];
      made.resize(std::max<std::size_t>(1, own_range.count * wire_.element));
      if (!group_.reduce_inside(call_, {rule_, send_, made.data(), 0}, ranges)) return false;
      result = made.data();
    }
    if (host == map_.own_host()) {
      own_result_ = result;
    } else if (first + map_.own_member() < size) {
      outgoing_.push_back({group_.rank_at(host, first + map_.own_member()), result,
                           own_range.count * wire_.element, step()});
    }
    return true;
  }

  // Sends the results to their ranks, and reduces the hosts' results for this rank.
  bool reduce_between() {
    const Range own = piece_of(map_.self);
    const std::size_t bytes = own.count * wire_.element;
    Bytes& peer_data = group_.peer_scratch_;
    reach_size(peer_data, std::max<std::size_t>(1, bytes * map_.host_count()));
    std::vector<Incoming> incoming;
    std::vector<const void*> inputs(map_.host_count(), own_result_);
    for (std::uint32_t host = 0; host < map_.host_count(); ++host) {
      if (host == map_.own_host()) continue;
      const auto size = static_cast<std::uint32_t>(map_.hosts[host].size());
      inputs[host] = peer_data.data() + host * bytes;
      incoming.push_back({group_.rank_at(host, map_.own_member() % size),
                          peer_data.data() + host * bytes, bytes, step()});
    }
    if (!group_.exchange(call_, outgoing_, incoming)) return false;
    if (own.count == 0) return true;
    reduce_hosts(rule_, wire_.form, inputs,
                 {at(receive_, index_ * piece_ * rule_.input_bytes()), own.count});
    return true;
  }

  HostCollectives& group_;
  const HostMap& map_;
  const OperationCall& call_;
  const ReduceRule& rule_;
  const void* const send_;
  void* const receive_;
  const Ranges& whole_;
  const Wire wire_;
  const std::size_t piece_;  // In elements of one rank's range.
  std::size_t index_ = 0;
  std::size_t rounds_ = 0;
  std::vector<Bytes> results_;  // This host's results, by the round in which they were computed.
  const void* own_result_ = nullptr;
  std::vector<Outgoing> outgoing_;
};

// Stores this host's partials of this member's own range in vectors.receive.
bool HostCollectives::reduce_inside(const OperationCall& call, const Vectors& vectors,
                                    const Ranges& ranges) {
  const auto& [rule, send, made, count] = vectors;
  const ReduceRule inside = partial_rule(rule);
  return shared_reduce_scatter(local_, call, {inside, send, made, count}, ranges);
}

bool HostCollectives::reduce_scatter(const OperationCall& call, const Collective& collective) {
  const ReduceRule rule = rule_of(collective);
  const Ranges ranges = ranges_of(collective);
  const void* const send = collective.send.data;
  void* const receive = collective.receive.data;
  if (send != receive || ranges.longest() <= ranges[0].count) {
    return reduce_scatter_to(call, {rule, send, receive, ranges[0].count}, ranges);
  }
  // The result would overwrite blocks that others have not read yet.
  const std::size_t own = collective.receive.bytes;
  Bytes result(std::max<std::size_t>(1, own));
  if (!reduce_scatter_to(call, {rule, send, result.data(), ranges[0].count}, ranges)) return false;
  if (own > 0) std::memcpy(receive, result.data(), own);
  return true;
}

bool HostCollectives::reduce_scatter_to(const OperationCall& call, const Vectors& vectors,
                                        const Ranges& ranges) {
  if (!spans_hosts()) return shared_reduce_scatter(local_, call, vectors, ranges);
  return ReduceScatter(*this, call, vectors, ranges).run();
}

bool HostCollectives::scan(const OperationCall& call, const Collective& collective) {
  // The number of ranks whose inputs the result has: in exscan without this rank's own.
  const std::int32_t end =
      map_.self + (collective.shape.operation == Operation::kExclusiveScan ? 0 : 1);
  ReduceRule rule = rule_of(collective);
  rule.divisor = static_cast<std::uint32_t>(std::max(1, end));
  const Vectors vectors = vectors_of(rule, collective);
  if (!spans_hosts()) return shared_scan(local_, call, vectors);
  const std::size_t count = vectors.count;
  const std::size_t wire = partial_bytes(rule.dtype, rule.op);
  const std::size_t ranks = map_.rank_count();
  const std::size_t piece = std::max<std::size_t>(1, (std::size_t{4} << 20) / ranks / wire);
  const ReduceRule own_rule = partial_rule(rule);
  Bytes own;
  Bytes all;
  for (std::size_t begin = 0; begin == 0 || begin < count; begin += piece) {
    const std::size_t elements = std::min(piece, count - begin);
    own.resize(std::max<std::size_t>(1, elements * wire));
    all.resize(std::max<std::size_t>(1, elements * wire * ranks));
    reduce_own({own_rule, at(vectors.send, begin * rule.input_bytes()), own.data(), elements});
    Collective partials;
    partials.send = {own.data(), elements * wire, {}};
    partials.receive = {all.data(), 0, Blocks::even(ranks, elements * wire)};
    if (!all_gather(call, partials)) return false;
    std::vector<const void*> inputs;
    for (std::int32_t rank = 0; rank < end; ++rank) {
      inputs.push_back(all.data() + static_cast<std::size_t>(rank) * elements * wire);
    }
    void* const result = at(vectors.receive, begin * rule.input_bytes());
    if (inputs.empty()) {
      fill_with_identity(rule.dtype, rule.op, result, elements);
    } else {
      reduce_hosts(rule, Form::kPartial, inputs, {result, elements});
    }
  }
  return true;
}

}  // namespace ivy::comm
