// The reducing collectives between hosts. See spanning_collectives.h.
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "comm/collectives/shared_parts.h"
#include "comm/collectives/spanning_collectives.h"

namespace ivy::comm {

using shared_parts::at;
using shared_parts::divide_up;
using shared_parts::Slice;
using shared_parts::slice_of;

namespace {

using Bytes = std::vector<std::uint8_t>;

void reach_size(Bytes& bytes, std::size_t size) {
  if (bytes.size() < size) bytes.resize(size);
}

// Converts one rank's elements to partials and applies its factor.
void to_partial(const ReduceRule& rule, const void* from, void* to, std::size_t count) {
  Reduction reduction;
  reduction.dtype = rule.dtype;
  reduction.op = rule.op;
  reduction.output_form = Form::kPartial;
  reduction.factors = rule.op == ReduceOp::kPremulSum ? &rule.factor : nullptr;
  reduce(reduction, &from, 1, to, nullptr, count);
}

// Reduces the hosts' results, of that form, to elements.
void reduce_hosts(const ReduceRule& rule, Form form, const std::vector<const void*>& inputs,
                  void* to, std::size_t count) {
  Reduction reduction;
  reduction.dtype = rule.dtype;
  reduction.op = rule.op;
  reduction.input_form = form;
  reduction.divisor = rule.divisor;
  reduce(reduction, inputs.data(), inputs.size(), to, nullptr, count);
}

ReduceRule partial_rule(ReduceRule rule) {
  rule.output_form = Form::kPartial;
  return rule;
}

}  // namespace

// True if ranks may send their elements as they are: only if no host reduces them first.
bool SpanningGroup::is_one_rank_each() const { return map_.host_count() == map_.rank_count(); }

std::size_t SpanningGroup::piece_elements(Operation operation, const ReduceRule& rule,
                                          std::size_t count) const {
  const std::size_t bytes = selector_.piece(operation, count * rule.input_bytes());
  return std::max<std::size_t>(1, bytes / rule.input_bytes());
}

bool SpanningGroup::all_reduce(const OperationCall& call, const ReduceRule& rule, const void* send,
                               void* receive, std::size_t count) {
  step_ = 0;
  const std::size_t bytes = count * rule.input_bytes();
  if (selector_.algorithm(Operation::kAllReduce, bytes) == Algorithm::kWhole) {
    return all_reduce_small(call, rule, send, receive, count);
  }
  return all_reduce_large(call, rule, send, receive, count);
}

bool SpanningGroup::all_reduce_small(const OperationCall& call, const ReduceRule& rule,
                                     const void* send, void* receive, std::size_t count) {
  const bool is_raw = is_one_rank_each() && rule.op != ReduceOp::kPremulSum;
  const Form form = is_raw ? Form::kElement : Form::kPartial;
  const std::size_t bytes =
      count * (is_raw ? rule.input_bytes() : partial_bytes(rule.dtype, rule.op));
  Bytes own(is_raw ? 0 : bytes);
  const void* shown = is_raw ? send : own.data();
  if (local_ != nullptr) {
    if (!shared_reduce(*local_, call, partial_rule(rule), send, own.data(), count, 0)) return false;
  } else if (!is_raw) {
    to_partial(rule, send, own.data(), count);
  }
  if (map_.own_member() == 0) {
    // Not in place, where it would be written over before it has left.
    const bool on_arrival = map_.host_count() == 2 && send != receive && count > 0;
    const TakePart take = [&](std::size_t begin, std::size_t end, const std::uint8_t* part) {
      const std::size_t wire = bytes / count;
      std::vector<const void*> parts(2, at(shown, begin));
      parts[1 - map_.own_host()] = part;
      reduce_hosts(rule, form, parts, at(receive, begin / wire * rule.input_bytes()),
                   (end - begin) / wire);
    };
    Bytes& theirs = their_scratch_;
    if (!on_arrival) reach_size(theirs, bytes * map_.host_count());
    std::vector<Outgoing> outgoing;
    std::vector<Incoming> incoming;
    std::vector<const void*> inputs(map_.host_count(), shown);
    for (std::uint32_t step = 1; step < map_.host_count(); ++step) {
      const std::uint32_t host = (map_.own_host() + step) % map_.host_count();
      outgoing.push_back({rank_at(host, 0), shown, bytes, 0});
      if (on_arrival) {
        incoming.push_back({rank_at(host, 0), nullptr, bytes, 0, &take});
      } else {
        inputs[host] = theirs.data() + host * bytes;
        incoming.push_back({rank_at(host, 0), theirs.data() + host * bytes, bytes, 0});
      }
    }
    if (!exchange(call, outgoing, incoming)) return false;
    if (!on_arrival) reduce_hosts(rule, form, inputs, receive, count);
  }
  return local_ == nullptr ||
         shared_broadcast(*local_, call, receive, count * rule.input_bytes(), 0);
}

// A large all_reduce, chunk after chunk. While the hosts' slices of one chunk are exchanged, the
// results of the chunk before are handed round.
class SpanningGroup::Column {
 public:
  Column(SpanningGroup& group, const OperationCall& call, const ReduceRule& rule, const void* send,
         void* receive, std::size_t count)
      : group_(group),
        map_(group.map_),
        call_(call),
        rule_(rule),
        send_(send),
        receive_(receive),
        count_(count),
        is_raw_(group.is_one_rank_each() && rule.op != ReduceOp::kPremulSum),
        wire_bytes_(is_raw_ ? rule.input_bytes() : partial_bytes(rule.dtype, rule.op)),
        chunk_(group.piece_elements(Operation::kAllReduce, rule, count)),
        own_(group.own_scratch_),
        theirs_(group.their_scratch_) {
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
  // True with one other host: then each part can be reduced as it comes, while it is in the caches.
  bool reduces_on_arrival() const { return map_.host_count() == 2; }
  std::size_t elements(std::size_t chunk) const {
    return std::min(chunk_, count_ - chunk * chunk_);
  }
  // A column's slice of a chunk, in elements of the whole vector.
  Slice column_slice(std::size_t chunk, std::uint32_t column) const {
    Slice slice = slice_of(elements(chunk), rule_.input_bytes(), columns_, column);
    slice.begin += chunk * chunk_;
    return slice;
  }
  // A host's part of this column's slice, relative to the slice.
  Slice host_part(const Slice& slice, std::uint32_t host) const {
    return slice_of(slice.count, rule_.input_bytes(), map_.host_count(), host);
  }
  std::uint8_t* result(std::size_t element) const {
    return at(receive_, element * rule_.input_bytes());
  }

  // Leaves this host's result of the own slice in own_ (or in place, where nothing is to be
  // reduced).
  bool reduce_inside(std::size_t chunk) {
    std::vector<Range> ranges(group_.members());
    for (std::uint32_t column = 0; column < columns_; ++column) {
      const Slice slice = column_slice(chunk, column);
      ranges[column] = {slice.begin, slice.count};
    }
    const Range own = ranges[map_.own_member()];
    if (is_raw_) return true;
    reach_size(own_, own.count * wire_bytes_);
    if (group_.local_ != nullptr) {
      return shared_reduce_scatter(*group_.local_, call_, partial_rule(rule_), send_, own_.data(),
                                   ranges);
    }
    to_partial(rule_, at(send_, own.begin * rule_.input_bytes()), own_.data(), own.count);
    return true;
  }

  const std::uint8_t* shown(const Slice& slice, const Slice& part) const {
    return is_raw_ ? at(send_, (slice.begin + part.begin) * wire_bytes_)
                   : own_.data() + part.begin * wire_bytes_;
  }

  bool exchange(std::size_t chunk, bool has_new, bool has_old) {
    std::vector<Outgoing> outgoing;
    std::vector<Incoming> incoming;
    TakePart take;
    const std::uint32_t hosts = map_.host_count();
    const std::uint32_t column = map_.own_member();
    const auto step_of = [](std::size_t of_chunk, std::uint32_t phase) {
      return static_cast<std::uint32_t>(of_chunk * 2 + phase);
    };
    if (has_old) {
      const Slice slice = column_slice(chunk - 1, column);
      const Slice own = host_part(slice, map_.own_host());
      for (std::uint32_t distance = 1; distance < hosts; ++distance) {
        const std::uint32_t host = (map_.own_host() + distance) % hosts;
        const std::int32_t rank = group_.rank_at(host, column);
        const Slice part = host_part(slice, host);
        const std::size_t element = rule_.input_bytes();
        outgoing.push_back(
            {rank, result(slice.begin + own.begin), own.count * element, step_of(chunk - 1, 1)});
        incoming.push_back(
            {rank, result(slice.begin + part.begin), part.count * element, step_of(chunk - 1, 1)});
      }
    }
    if (has_new) {
      const Slice slice = column_slice(chunk, column);
      const Slice own = host_part(slice, map_.own_host());
      if (reduces_on_arrival()) {
        take = [this, slice, own](std::size_t begin, std::size_t end, const std::uint8_t* part) {
          reduce_part(slice, own, begin / wire_bytes_, end / wire_bytes_, part);
        };
      } else {
        reach_size(theirs_, own.count * wire_bytes_ * hosts);
      }
      for (std::uint32_t distance = 1; distance < hosts; ++distance) {
        const std::uint32_t host = (map_.own_host() + distance) % hosts;
        const std::int32_t rank = group_.rank_at(host, column);
        const Slice part = host_part(slice, host);
        outgoing.push_back({rank, shown(slice, part), part.count * wire_bytes_, step_of(chunk, 0)});
        Incoming theirs = {rank, nullptr, own.count * wire_bytes_, step_of(chunk, 0)};
        if (reduces_on_arrival()) {
          theirs.take = &take;
        } else {
          theirs.data = theirs_.data() + host * own.count * wire_bytes_;
        }
        incoming.push_back(theirs);
      }
    }
    return group_.exchange(call_, outgoing, incoming);
  }

  void reduce_between(std::size_t chunk) {
    const Slice slice = column_slice(chunk, map_.own_member());
    const Slice own = host_part(slice, map_.own_host());
    if (own.count == 0) return;
    std::vector<const void*> inputs(map_.host_count());
    for (std::uint32_t host = 0; host < map_.host_count(); ++host) {
      inputs[host] = host == map_.own_host() ? shown(slice, own)
                                             : theirs_.data() + host * own.count * wire_bytes_;
    }
    reduce_hosts(rule_, is_raw_ ? Form::kElement : Form::kPartial, inputs,
                 result(slice.begin + own.begin), own.count);
  }

  // Reduces the elements [begin, end) of this host's part with the other host's.
  void reduce_part(const Slice& slice, const Slice& own, std::size_t begin, std::size_t end,
                   const std::uint8_t* theirs) {
    std::vector<const void*> inputs(2, shown(slice, own) + begin * wire_bytes_);
    inputs[1 - map_.own_host()] = theirs;
    reduce_hosts(rule_, is_raw_ ? Form::kElement : Form::kPartial, inputs,
                 result(slice.begin + own.begin + begin), end - begin);
  }

  bool share_inside(std::size_t chunk) {
    if (group_.local_ == nullptr) return true;
    std::vector<Block> blocks(group_.members());
    const std::size_t element = rule_.input_bytes();
    for (std::uint32_t column = 0; column < columns_; ++column) {
      const Slice slice = column_slice(chunk, column);
      blocks[column] = {slice.begin * element, slice.count * element};
    }
    return shared_all_gather(*group_.local_, call_, at(receive_, blocks[map_.own_member()].offset),
                             receive_, blocks);
  }

  SpanningGroup& group_;
  const HostMap& map_;
  const OperationCall& call_;
  const ReduceRule& rule_;
  const void* const send_;
  void* const receive_;
  const std::size_t count_;
  const bool is_raw_;
  const std::size_t wire_bytes_;  // Bytes of one element between hosts.
  const std::size_t chunk_;       // Elements.
  std::uint32_t columns_ = 1;
  Bytes& own_;
  Bytes& theirs_;
};

bool SpanningGroup::all_reduce_large(const OperationCall& call, const ReduceRule& rule,
                                     const void* send, void* receive, std::size_t count) {
  return Column(*this, call, rule, send, receive, count).run();
}

bool SpanningGroup::reduce(const OperationCall& call, const ReduceRule& rule, const void* send,
                           void* receive, std::size_t count, std::int32_t root) {
  const std::uint32_t root_host = map_.host_of[static_cast<std::size_t>(root)];
  const auto delegate = [&](std::uint32_t host) {
    return host == root_host ? root : rank_at(host, 0);
  };
  const std::uint32_t own_host = map_.own_host();
  const bool is_raw = is_one_rank_each() && rule.op != ReduceOp::kPremulSum;
  const std::size_t wire = is_raw ? rule.input_bytes() : partial_bytes(rule.dtype, rule.op);
  const std::size_t piece = piece_elements(Operation::kReduce, rule, count);
  const std::size_t pieces = std::max<std::size_t>(1, divide_up(count, piece));
  Bytes own;
  Bytes theirs;
  for (std::size_t index = 0; index < pieces; ++index) {
    const std::size_t elements = std::min(piece, count - index * piece);
    const void* const input = at(send, index * piece * rule.input_bytes());
    const void* shown = input;
    if (!is_raw) {
      own.resize(elements * wire);
      shown = own.data();
      const std::int32_t to = delegate(own_host);
      if (local_ == nullptr) {
        to_partial(rule, input, own.data(), elements);
      } else if (!shared_reduce(*local_, call, partial_rule(rule), input, own.data(), elements,
                                map_.member_of[static_cast<std::size_t>(to)])) {
        return false;
      }
    }
    if (delegate(own_host) != map_.self) continue;
    const auto step = static_cast<std::uint32_t>(index);
    if (map_.self != root) {
      if (!exchange(call, {{root, shown, elements * wire, step}}, {})) return false;
      continue;
    }
    theirs.resize(elements * wire * map_.host_count());
    std::vector<Incoming> incoming;
    std::vector<const void*> inputs(map_.host_count(), shown);
    for (std::uint32_t host = 0; host < map_.host_count(); ++host) {
      if (host == own_host) continue;
      inputs[host] = theirs.data() + host * elements * wire;
      incoming.push_back(
          {delegate(host), theirs.data() + host * elements * wire, elements * wire, step});
    }
    if (!exchange(call, {}, incoming)) return false;
    reduce_hosts(rule, is_raw ? Form::kElement : Form::kPartial, inputs,
                 at(receive, index * piece * rule.input_bytes()), elements);
  }
  return true;
}

// Leaves this host's partials of its own member's range in `made`.
bool SpanningGroup::reduce_inside(const OperationCall& call, const ReduceRule& rule,
                                  const void* send, void* made, const Ranges& ranges) {
  if (local_ != nullptr) {
    return shared_reduce_scatter(*local_, call, partial_rule(rule), send, made, ranges);
  }
  const Range mine = ranges[map_.own_member()];
  to_partial(rule, at(send, mine.begin * rule.input_bytes()), made, mine.count);
  return true;
}

bool SpanningGroup::reduce_scatter(const OperationCall& call, const ReduceRule& rule,
                                   const void* send, void* receive, const Ranges& whole) {
  const std::size_t longest = whole.longest();
  const bool is_raw = is_one_rank_each() && rule.op != ReduceOp::kPremulSum;
  const std::size_t wire = is_raw ? rule.input_bytes() : partial_bytes(rule.dtype, rule.op);
  const std::size_t piece = piece_elements(Operation::kReduceScatter, rule, whole.total());
  const std::size_t pieces = std::max<std::size_t>(1, divide_up(longest, piece));
  const auto piece_range = [&](std::int32_t rank, std::size_t index) {
    const Range all = whole[static_cast<std::size_t>(rank)];
    const std::size_t begin = std::min(index * piece, all.count);
    return Range{all.begin + begin, std::min(piece, all.count - begin)};
  };
  std::vector<Bytes> results;  // This host's results, by the round in which they were made.
  Bytes& theirs = their_scratch_;
  for (std::size_t index = 0; index < pieces; ++index) {
    const auto step = static_cast<std::uint32_t>(index);
    const Range own = piece_range(map_.self, index);
    const void* own_result = at(send, own.begin * rule.input_bytes());
    std::vector<Outgoing> outgoing;
    std::size_t round = 0;
    for (std::uint32_t host = 0; host < map_.host_count(); ++host) {
      const auto size = static_cast<std::uint32_t>(map_.hosts[host].size());
      for (std::uint32_t first = 0; first < size; first += members()) {
        std::vector<Range> ranges(members());
        for (std::uint32_t member = 0; member < members() && first + member < size; ++member) {
          ranges[member] = piece_range(rank_at(host, first + member), index);
        }
        const Range mine = ranges[map_.own_member()];
        const void* result = at(send, mine.begin * rule.input_bytes());
        if (!is_raw) {
          if (results.size() <= round) results.emplace_back();
          Bytes& made = results[round++];
          made.resize(std::max<std::size_t>(1, mine.count * wire));
          if (!reduce_inside(call, rule, send, made.data(), ranges)) return false;
          result = made.data();
        }
        if (host == map_.own_host()) {
          own_result = result;
        } else if (first + map_.own_member() < size) {
          outgoing.push_back(
              {rank_at(host, first + map_.own_member()), result, mine.count * wire, step});
        }
      }
    }
    reach_size(theirs, std::max<std::size_t>(1, own.count * wire * map_.host_count()));
    std::vector<Incoming> incoming;
    std::vector<const void*> inputs(map_.host_count(), own_result);
    for (std::uint32_t host = 0; host < map_.host_count(); ++host) {
      if (host == map_.own_host()) continue;
      const auto size = static_cast<std::uint32_t>(map_.hosts[host].size());
      inputs[host] = theirs.data() + host * own.count * wire;
      incoming.push_back({rank_at(host, map_.own_member() % size),
                          theirs.data() + host * own.count * wire, own.count * wire, step});
    }
    if (!exchange(call, outgoing, incoming)) return false;
    if (own.count > 0) {
      reduce_hosts(rule, is_raw ? Form::kElement : Form::kPartial, inputs,
                   at(receive, index * piece * rule.input_bytes()), own.count);
    }
  }
  return true;
}

bool SpanningGroup::scan(const OperationCall& call, const ReduceRule& rule, const void* send,
                         void* receive, std::size_t count) {
  const std::size_t wire = partial_bytes(rule.dtype, rule.op);
  const std::size_t ranks = map_.rank_count();
  const std::size_t piece = std::max<std::size_t>(1, (std::size_t{4} << 20) / ranks / wire);
  Bytes own;
  Bytes all;
  for (std::size_t begin = 0; begin == 0 || begin < count; begin += piece) {
    const std::size_t elements = std::min(piece, count - begin);
    own.resize(std::max<std::size_t>(1, elements * wire));
    all.resize(std::max<std::size_t>(1, elements * wire * ranks));
    to_partial(rule, at(send, begin * rule.input_bytes()), own.data(), elements);
    std::vector<Block> blocks(ranks);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      blocks[rank] = {rank * elements * wire, elements * wire};
    }
    if (!all_gather(call, own.data(), all.data(), blocks)) return false;
    std::vector<const void*> inputs;
    for (std::int32_t rank = 0; rank <= map_.self; ++rank) {
      inputs.push_back(all.data() + static_cast<std::size_t>(rank) * elements * wire);
    }
    reduce_hosts(rule, Form::kPartial, inputs, at(receive, begin * rule.input_bytes()), elements);
  }
  return true;
}

}  // namespace ivy::comm
