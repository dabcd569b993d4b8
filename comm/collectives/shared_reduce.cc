// SPDX-License-Identifier: Apache-2.0
// The reducing collectives of one host: all_reduce, reduce, reduce_scatter, scan.
//
// By chunks, all_reduce of members 0..p-1 (here p = 2, chunk c of the vector is [a|b]):
//
//   member 0                               member 1
//   fill    slot 0 <- its b                slot 1 <- its a
//   reduce  a + slot 1's a -> result a,    slot 0's b + b -> result b,
//           and into slot 0                and into slot 1
//   copy    slot 1's b -> result b         slot 0's a -> result a
//
// The next chunk is filled before this one is reduced, so that a member that is slightly late does
// not stop the others.
#include <algorithm>
#include <cstring>
#include <vector>

#include "comm/collectives/selector.h"
#include "comm/collectives/shared_collectives.h"
#include "comm/collectives/shared_parts.h"
#include "comm/reduce/identity.h"

namespace ivy::comm {
namespace {

using namespace shared_parts;

// The payload of an entry carries the factor of PREMUL_SUM, and then no data.
void write_factor(SharedGroup& group, const ReduceRule& rule) {
  if (rule.op == ReduceOp::kPremulSum) std::memcpy(group.entries().own_payload(), &rule.factor, 8);
}

void read_factors(const SharedGroup& group, const ReduceRule& rule, Inputs& inputs) {
  if (rule.op != ReduceOp::kPremulSum) return;
  for (std::uint32_t member = 0; member < group.size(); ++member) {
    double factor = 1;
    std::memcpy(&factor, group.entries().payload(member), sizeof factor);
    inputs.set_factor(member, member == group.self() ? rule.factor : factor);
  }
}

Reduction reduction_of(const ReduceRule& rule, const Inputs& inputs, Stores stores) {
  Reduction reduction = shared_parts::reduction_of(rule, stores);
  if (rule.op == ReduceOp::kPremulSum) reduction.factors = inputs.factors();
  return reduction;
}

// Destination of a reduction of members' inputs.
struct Output {
  void* first = nullptr;
  std::size_t count = 0;
  Stores stores = Stores::kCached;
  void* second = nullptr;  // Gets the same result, unless it is null.
};

void run(const ReduceRule& rule, const Inputs& inputs, std::uint32_t members,
         const Output& output) {
  // The first member of an exclusive scan has no predecessors.
  if (members == 0) return fill_with_identity(rule.dtype, rule.op, output.first, output.count);
  reduce(reduction_of(rule, inputs, output.stores),
         {inputs.pointers(), members, output.first, output.second, output.count});
}

// Returns whether inputs of that length are published in the entry itself.
bool is_inline(const ReduceRule& rule, std::size_t bytes) {
  return bytes <= kInlineBytes && rule.op != ReduceOp::kPremulSum;
}

// Shows this member's whole input in its entry or eager area.
void show_input(SharedGroup& group, const Vectors& vectors) {
  const std::size_t bytes = vectors.bytes();
  group.entries().expect_bytes(bytes);
  if (is_inline(vectors.rule, bytes)) {
    std::memcpy(group.entries().own_payload(), vectors.send, bytes);
  } else {
    write_factor(group, vectors.rule);
    std::memcpy(group.entries().own_eager(), vectors.send, bytes);
  }
  group.entries().publish();
}

const void* published_input(const SharedGroup& group, std::uint32_t member, bool in_entries) {
  return in_entries ? group.entries().payload(member) : group.entries().eager(member);
}

// Reduces the inputs published by members 0..members-1.
void reduce_published(const SharedGroup& group, const Vectors& vectors, std::uint32_t members) {
  const bool in_entries = is_inline(vectors.rule, vectors.bytes());
  Inputs inputs;
  for (std::uint32_t member = 0; member < members; ++member) {
    inputs.set(member,
               member == group.self() ? vectors.send : published_input(group, member, in_entries));
  }
  read_factors(group, vectors.rule, inputs);
  run(vectors.rule, inputs, members, {vectors.receive, vectors.count});
}

// An all_reduce (or reduce) in chunks.
class ChunkedReduce {
 public:
  ChunkedReduce(SharedGroup& group, Operation operation, const Vectors& vectors)
      : group_(group),
        rule_(vectors.rule),
        send_(vectors.send),
        receive_(vectors.receive),
        count_(vectors.count),
        element_(rule_.input_bytes()),
        result_(rule_.output_bytes()),
        cell_(std::max(element_, result_)),
        chunk_elements_(slot_elements(cell_)),
        chunks_(divide_up(count_, chunk_elements_)),
        first_(group.slots().take(chunks_)),
        stores_(group.selector().stores(operation, count_ * element_)) {}

  // `root` is a member, or kAllMembers.
  static constexpr std::uint32_t kAllMembers = ~std::uint32_t{0};
  bool run_for(std::uint32_t root) {
    root_ = root;
    write_factor(group_, rule_);
    const bool is_registered = show_buffers();
    const bool is_slotted = !is_registered && !may_go_by_kernel_;
    if (is_slotted && !fill(0)) return false;
    group_.entries().publish();
    if (!group_.entries().await_all()) return false;
    read_factors(group_, rule_, inputs_);
    DataPath path = is_registered ? reduction_path(group_, true) : DataPath::kSlots;
    if (path == DataPath::kDirect) return run_directly();
    if (path == DataPath::kSlots && may_go_by_kernel_) path = in_place_path(group_);
    if (path == DataPath::kBroken) return false;
    if (path == DataPath::kDirect) return run_by_kernel();
    if (!is_slotted && !fill(0)) return false;
    // If in place, each line of the output was just read as input. It is in the caches, and a store
    // that bypasses them would only evict it.
    if (send_ == receive_) stores_ = Stores::kCached;
    return stores_ == Stores::kStreaming ? run_past_caches() : run_in_caches();
  }

 private:
  bool run_in_caches() {
    for (std::size_t chunk = 0; chunk < chunks_; ++chunk) {
      if (chunk + 1 < chunks_ && !fill(chunk + 1)) return false;
      if (!reduce_own_slice(chunk) || !collect(chunk)) return false;
    }
    return true;
  }

  // Alternates between copying the others' results of one chunk and reducing the next chunk.
  bool run_past_caches() {
    copies_.reserve(group_.size());
    for (std::size_t chunk = 0; chunk < chunks_; ++chunk) {
      if (chunk + 1 < chunks_ && !fill(chunk + 1)) return false;
      if (chunk > 0 && !await_published_results(chunk - 1)) return false;
      if (!reduce_own_slice(chunk)) return false;
      if (chunk > 0) group_.slots().publish_drained(first_ + chunk - 1);
    }
    return collect(chunks_ - 1);
  }

  bool is_receiver() const { return root_ == kAllMembers || root_ == group_.self(); }
  std::size_t begin_of(std::size_t chunk) const { return chunk * chunk_elements_; }
  Slice slice(std::size_t chunk, std::uint32_t member) const {
    const std::size_t elements = std::min(chunk_elements_, count_ - begin_of(chunk));
    return slice_of(elements, element_, group_.size(), member);
  }
  const std::uint8_t* input(std::size_t chunk, const Slice& slice) const {
    return at(send_, (begin_of(chunk) + slice.begin) * element_);
  }
  std::uint8_t* output(std::size_t chunk, const Slice& slice) const {
    return at(receive_, (begin_of(chunk) + slice.begin) * result_);
  }
  // Returns the start of a slice's inputs, and later of its results, in a slot.
  std::uint8_t* slot_slice(std::size_t chunk, std::uint32_t member, const Slice& slice) const {
    return group_.slots().slot(member, first_ + chunk) + slice.begin * cell_;
  }

  // Publishes this member's buffers. Returns whether they are registered.
  bool show_buffers() {
    const std::size_t bytes = count_ * element_;
    const bool is_all_reduce = root_ == kAllMembers;
    may_go_by_kernel_ =
        is_all_reduce && send_ == receive_ && element_ == result_ &&
        group_.size() <= kMembersByKernel &&
        group_.selector().algorithm(Operation::kAllReduce, bytes) == SharedAlgorithm::kKernel &&
        (group_.buffers().known_capabilities().value_or(PeerMemory::kCanRead) &
         PeerMemory::kCanRead) != 0;
    PublishedBuffers buffers;
    if (is_all_reduce) {
      buffers.send = registered_memory::location_of(send_, bytes);
      buffers.receive = registered_memory::location_of(receive_, bytes);
    }
    publish_buffers(group_, buffers);
    return is_all_reduce && buffers.send.is_registered() && buffers.receive.is_registered();
  }

  // Size of a chunk of the direct algorithm, in slots. One chunk of all members fits into a
  // second-level cache.
  static constexpr std::size_t kDirectChunkSlots = 4;
  // From this size on, no processor's own cache holds the outputs. A result that others read
  // immediately would use twice the necessary memory bandwidth: its lines would be fetched to be
  // written, and the output's copy would be written back. So results bypass the caches, and the
  // others read them kChunksToArrive chunks later.
  static constexpr std::size_t kPastCachesBytes = std::size_t{16} << 20;
  static constexpr std::size_t kChunksToArrive = 8;

  // Used if all buffers are mapped. Each member reduces its slices from all inputs into its own
  // output, and takes the others' slices from their outputs some chunks later. If in place, a slice
  // is overwritten only when the only member that reads it has done so.
  bool run_directly() {
    const std::uint64_t last = first_ + chunks_ - 1;
    const bool is_past_caches = count_ * element_ >= kPastCachesBytes;
    const std::size_t lag = is_past_caches ? kChunksToArrive : 1;
    // Chunks are larger, because no slot has to hold them; so the members synchronize less often.
    chunk_elements_ *= is_past_caches ? group_.size() : kDirectChunkSlots;
    chunks_ = divide_up(count_, chunk_elements_);
    if (!map_all()) return false;
    for (std::size_t chunk = 0; chunk < chunks_ + lag; ++chunk) {
      copies_.clear();
      if (is_past_caches && chunk >= lag && !await_results(chunk - lag)) return false;
      if (chunk < chunks_) reduce_directly(chunk, is_past_caches);
      if (!is_past_caches && chunk >= lag && !await_results(chunk - lag)) return false;
      // Do the copies that were not done during the reduction.
      for (const Copy& result : copies_) copy(result.to, result.from, result.bytes, stores_);
    }
    group_.slots().publish_drained(last);
    group_.buffers().publish_fetched();
    return group_.buffers().await_fetched();
  }

  struct MappedBuffers {
    const std::uint8_t* send = nullptr;
    const std::uint8_t* receive = nullptr;
  };

  bool map_all() {
    const std::uint32_t members = group_.size();
    mapped_.resize(members);
    copies_.reserve(members);
    for (std::uint32_t member = 0; member < members; ++member) {
      const PublishedBuffers buffers = buffers_of(group_, member);
      if (!group_.buffers().map(member, buffers.send, &mapped_[member].send) ||
          !group_.buffers().map(member, buffers.receive, &mapped_[member].receive)) {
        return false;
      }
    }
    return true;
  }

  void reduce_directly(std::size_t chunk, bool is_past_caches) {
    const Slice own = slice(chunk, group_.self());
    const std::size_t begin = (begin_of(chunk) + own.begin) * element_;
    for (std::uint32_t member = 0; member < group_.size(); ++member) {
      inputs_.set(member, mapped_[member].send + begin);
    }
    if (is_past_caches) {
      reduce_with_copies(output(chunk, own), nullptr, own.count);
    } else {
      run(rule_, inputs_, group_.size(), {output(chunk, own), own.count});
    }
    group_.slots().publish_reduced(first_ + chunk);
  }

  // Waits for the others' results of a chunk, and schedules their copies.
  bool await_results(std::size_t chunk) {
    return each_other(group_, [&](std::uint32_t member) {
      if (!group_.slots().await_reduced(member, first_ + chunk)) return false;
      const Slice peer_slice = slice(chunk, member);
      const std::size_t begin = (begin_of(chunk) + peer_slice.begin) * element_;
      copies_.push_back({output(chunk, peer_slice), mapped_[member].receive + begin,
                         peer_slice.count * element_});
      return true;
    });
  }

  // Chunk size for copies through the kernel: the part that a member fetches stays in its
  // second-level cache until it is reduced.
  static constexpr std::size_t kKernelChunkBytes = std::size_t{1} << 20;
  // Limit of members, so that the slices, each rounded up to whole lines, fit into a member's
  // slots.
  static constexpr std::uint32_t kMembersByKernel = 16;
  static_assert(kKernelChunkBytes <= kSlotsPerMember * kSlotBytes);

  // Used if all members work in place and one copy through the kernel costs less than two through
  // the slots. Each member fetches the others' inputs of its slices into its slots, which nobody
  // else reads now, and reduces them. It fetches the others' results when those have left the other
  // processor's own caches. A slice is overwritten only when the only member that reads it has done
  // so.
  bool run_by_kernel() {
    const std::uint64_t last = first_ + chunks_ - 1;
    if (!group_.slots().await_room(first_ + kSlotsPerMember - 1)) return false;
    chunk_elements_ = kKernelChunkBytes / cell_;
    chunks_ = divide_up(count_, chunk_elements_);
    for (std::size_t chunk = 0; chunk < chunks_ + kChunksToArrive; ++chunk) {
      if (chunk < chunks_ && !reduce_fetched(chunk)) return false;
      if (chunk >= kChunksToArrive && !fetch_results(chunk - kChunksToArrive)) return false;
    }
    group_.slots().publish_drained(last);
    group_.buffers().publish_fetched();
    return group_.buffers().await_fetched();
  }

  bool fetch(std::uint32_t member, std::size_t begin, void* to, std::size_t bytes) {
    BufferLocation place = buffers_of(group_, member).send;
    place.address += begin;
    place.offset += begin;
    return group_.buffers().fetch(member, {place, to, bytes, Stores::kCached});
  }

  bool reduce_fetched(std::size_t chunk) {
    const Slice own = slice(chunk, group_.self());
    const std::size_t begin = (begin_of(chunk) + own.begin) * element_;
    const std::size_t bytes = own.count * element_;
    std::uint8_t* room = group_.slots().own_slot(0);
    inputs_.set(group_.self(), input(chunk, own));
    const bool is_whole = each_other(group_, [&](std::uint32_t member) {
      inputs_.set(member, room);
      if (!fetch(member, begin, room, bytes)) return false;
      room += divide_up(bytes, kSliceBytes) * kSliceBytes;
      return true;
    });
    if (!is_whole) return false;
    run(rule_, inputs_, group_.size(), {output(chunk, own), own.count});
    group_.slots().publish_reduced(first_ + chunk);
    return true;
  }

  bool fetch_results(std::size_t chunk) {
    return each_other(group_, [&](std::uint32_t member) {
      const Slice peer_slice = slice(chunk, member);
      return group_.slots().await_reduced(member, first_ + chunk) &&
             fetch(member, (begin_of(chunk) + peer_slice.begin) * element_,
                   output(chunk, peer_slice), peer_slice.count * element_);
    });
  }

  // Publishes this member's input of the slices that other members reduce.
  bool fill(std::size_t chunk) {
    if (!group_.slots().await_room(first_ + chunk)) return false;
    each_other(group_, [&](std::uint32_t member) {
      const Slice peer_slice = slice(chunk, member);
      copy(slot_slice(chunk, group_.self(), peer_slice), input(chunk, peer_slice),
           peer_slice.count * element_, Stores::kCached);
      return true;
    });
    group_.slots().publish_filled(first_ + chunk);
    return true;
  }

  bool reduce_own_slice(std::size_t chunk) {
    const Slice own = slice(chunk, group_.self());
    inputs_.set(group_.self(), input(chunk, own));
    const bool all_are_here = each_other(group_, [&](std::uint32_t member) {
      inputs_.set(member, slot_slice(chunk, member, own));
      return group_.slots().await_filled(member, first_ + chunk);
    });
    if (!all_are_here) return false;
    std::uint8_t* to_others = slot_slice(chunk, group_.self(), own);
    const bool is_published = root_ != group_.self();
    if (!is_receiver()) {
      run(rule_, inputs_, group_.size(), {to_others, own.count});
    } else if (!copies_.empty()) {
      reduce_with_copies(output(chunk, own), is_published ? to_others : nullptr, own.count);
    } else {
      run(rule_, inputs_, group_.size(),
          {output(chunk, own), own.count, stores_, is_published ? to_others : nullptr});
    }
    group_.slots().publish_reduced(first_ + chunk);
    return true;
  }

  void reduce_with_copies(void* output, void* second, std::size_t count) {
    reduce_and_copy(reduction_of(rule_, inputs_, Stores::kStreaming),
                    {inputs_.pointers(), group_.size(), output, second, count}, copies_);
    copies_.clear();
  }

  // Calls visit(copy) for every slice of a chunk that another member has published as reduced.
  template <class Visit>
  bool each_published_result(std::size_t chunk, Visit visit) {
    return !is_receiver() || each_other(group_, [&](std::uint32_t member) {
      if (!group_.slots().await_reduced(member, first_ + chunk)) return false;
      const Slice peer_slice = slice(chunk, member);
      visit(Copy{output(chunk, peer_slice), slot_slice(chunk, member, peer_slice),
                 peer_slice.count * result_});
      return true;
    });
  }

  bool await_published_results(std::size_t chunk) {
    return each_published_result(chunk, [&](const Copy& result) { copies_.push_back(result); });
  }

  // Copies the slices that other members reduced.
  bool collect(std::size_t chunk) {
    const bool is_whole = each_published_result(
        chunk, [&](const Copy& result) { copy(result.to, result.from, result.bytes, stores_); });
    if (is_whole) group_.slots().publish_drained(first_ + chunk);
    return is_whole;
  }

  SharedGroup& group_;
  const ReduceRule& rule_;
  const void* const send_;
  void* const receive_;
  const std::size_t count_;
  const std::size_t element_;
  const std::size_t result_;  // Size of a result; partials are wider than elements.
  const std::size_t cell_;    // Size of one element in a slot.
  std::size_t chunk_elements_;
  std::size_t chunks_;
  const std::uint64_t first_;
  Stores stores_;
  std::uint32_t root_ = kAllMembers;
  bool may_go_by_kernel_ = false;
  Inputs inputs_;
  std::vector<MappedBuffers> mapped_;  // The members' buffers, for run_directly().
  // Copies of other members' results that are not done yet.
  std::vector<Copy> copies_;
};

}  // namespace

bool shared_all_reduce(SharedGroup* local, const OperationCall& call, const Vectors& vectors) {
  if (local == nullptr) return reduce_own(vectors);
  SharedGroup& group = *local;
  if (!group.begin(call)) return false;
  if (group.selector().algorithm(Operation::kAllReduce, vectors.bytes()) !=
      SharedAlgorithm::kEager) {
    return ChunkedReduce(group, Operation::kAllReduce, vectors).run_for(ChunkedReduce::kAllMembers);
  }
  show_input(group, vectors);
  if (!group.entries().await_all()) return false;
  reduce_published(group, vectors, group.size());
  return true;
}

bool shared_reduce(SharedGroup* local, const OperationCall& call, const Vectors& vectors,
                   std::uint32_t root) {
  if (local == nullptr) return reduce_own(vectors);
  SharedGroup& group = *local;
  if (!group.begin(call)) return false;
  if (group.selector().algorithm(Operation::kReduce, vectors.bytes()) != SharedAlgorithm::kEager) {
    return ChunkedReduce(group, Operation::kReduce, vectors).run_for(root);
  }
  show_input(group, vectors);
  if (group.self() != root) return true;
  if (!group.entries().await_all()) return false;
  reduce_published(group, vectors, group.size());
  return true;
}

namespace {

// How blocks are split: each chunk has `each` elements of every block, so that one slot holds a
// piece for every member.
struct BlockCut {
  std::size_t each = 1;
  std::size_t chunks = 0;
};

BlockCut cut_blocks(std::size_t longest, std::size_t element, std::uint32_t members) {
  const std::size_t step = std::max<std::size_t>(1, kSliceBytes / element);
  BlockCut cut;
  cut.each = std::max<std::size_t>(1, kSlotBytes / members / element / step * step);
  if (cut.each * members * element > kSlotBytes) cut.each = 1;
  cut.chunks = divide_up(longest, cut.each);
  return cut;
}

std::size_t piece_of(std::size_t count, const BlockCut& cut, std::size_t chunk) {
  const std::size_t begin = chunk * cut.each;
  return begin < count ? std::min(cut.each, count - begin) : 0;
}

class ReduceScatter {
 public:
  ReduceScatter(SharedGroup& group, const Vectors& vectors, const Ranges& ranges)
      : group_(group),
        rule_(vectors.rule),
        send_(vectors.send),
        receive_(vectors.receive),
        ranges_(ranges) {}

  std::size_t bytes() const { return ranges_.total() * element_; }

  // The pieces for the other members are stored back to back in the entry or the eager area.
  bool run_eagerly() {
    group_.entries().expect_bytes(bytes());
    const bool in_entries = is_inline(rule_, bytes());
    std::uint8_t* const published =
        in_entries ? group_.entries().own_payload() : group_.entries().own_eager();
    write_factor(group_, rule_);
    // A member publishes nothing for itself.
    const std::uint32_t self = group_.self();
    std::size_t before_own = 0;
    std::size_t next = 0;
    for (std::uint32_t member = 0; member < group_.size(); ++member) {
      const Range range = ranges_[member];
      if (member == self) continue;
      if (member < self) before_own += range.count * element_;
      if (range.count > 0) {
        std::memcpy(published + next, at(send_, range.begin * element_), range.count * element_);
      }
      next += range.count * element_;
    }
    const Range own = ranges_[self];
    group_.entries().publish();
    if (!group_.entries().await_all()) return false;
    for (std::uint32_t member = 0; member < group_.size(); ++member) {
      // The offset is the same in all members' areas, except for the part that the publisher leaves
      // out.
      const std::size_t begin = before_own - (member < self ? ranges_[member].count * element_ : 0);
      const std::uint8_t* const peer_data =
          in_entries ? group_.entries().payload(member) : group_.entries().eager(member);
      inputs_.set(member, member == self ? at(send_, own.begin * element_) : peer_data + begin);
    }
    read_factors(group_, rule_, inputs_);
    run(rule_, inputs_, group_.size(), {receive_, own.count});
    return true;
  }

  bool run_by_chunks() {
    cut_ = cut_blocks(ranges_.longest(), element_, group_.size());
    first_ = group_.slots().take(cut_.chunks);
    write_factor(group_, rule_);
    // Not in place, because the result would overwrite data that another member reads.
    BufferLocation own_send;
    if (send_ != receive_) {
      own_send = registered_memory::location_of(send_, bytes());
    }
    publish_buffers(group_, {own_send, {}});
    if (!own_send.is_registered() && !fill(0)) return false;
    group_.entries().publish();
    if (!group_.entries().await_all()) return false;
    read_factors(group_, rule_, inputs_);
    if (own_send.is_registered()) {
      const DataPath path = reduction_path(group_, false);
      if (path == DataPath::kBroken) return false;
      if (path == DataPath::kDirect) return run_directly();
      if (!fill(0)) return false;
    }
    for (std::size_t chunk = 0; chunk < cut_.chunks; ++chunk) {
      if (chunk + 1 < cut_.chunks && !fill(chunk + 1)) return false;
      if (!reduce_own_piece(chunk)) return false;
    }
    return true;
  }

 private:
  const std::uint8_t* input(std::uint32_t member, std::size_t chunk) const {
    return at(send_, (ranges_[member].begin + chunk * cut_.each) * element_);
  }

  // Reduces from all inputs, which are mapped.
  bool run_directly() {
    const Range own = ranges_[group_.self()];
    for (std::uint32_t member = 0; member < group_.size(); ++member) {
      const std::uint8_t* input = nullptr;
      if (!group_.buffers().map(member, buffers_of(group_, member).send, &input)) return false;
      inputs_.set(member, input + own.begin * element_);
    }
    const std::size_t bytes = own.count * rule_.output_bytes();
    if (bytes > 0) {
      const Stores stores = group_.selector().stores(Operation::kReduceScatter, bytes);
      run(rule_, inputs_, group_.size(), {receive_, own.count, stores});
    }
    if (cut_.chunks > 0) group_.slots().publish_drained(first_ + cut_.chunks - 1);
    group_.buffers().publish_fetched();
    return group_.buffers().await_fetched();
  }

  bool fill(std::size_t chunk) {
    if (cut_.chunks == 0) return true;
    if (!group_.slots().await_room(first_ + chunk)) return false;
    std::uint8_t* slot = group_.slots().slot(group_.self(), first_ + chunk);
    each_other(group_, [&](std::uint32_t member) {
      const std::size_t piece = piece_of(ranges_[member].count, cut_, chunk);
      if (piece > 0) {
        copy(slot + member * cut_.each * element_, input(member, chunk), piece * element_,
             Stores::kCached);
      }
      return true;
    });
    group_.slots().publish_filled(first_ + chunk);
    return true;
  }

  bool reduce_own_piece(std::size_t chunk) {
    const std::uint32_t self = group_.self();
    const std::size_t piece = piece_of(ranges_[self].count, cut_, chunk);
    inputs_.set(self, input(self, chunk));
    const bool all_are_here = each_other(group_, [&](std::uint32_t member) {
      inputs_.set(member,
                  group_.slots().slot(member, first_ + chunk) + self * cut_.each * element_);
      return group_.slots().await_filled(member, first_ + chunk);
    });
    if (!all_are_here) return false;
    if (piece > 0) {
      run(rule_, inputs_, group_.size(),
          {at(receive_, chunk * cut_.each * rule_.output_bytes()), piece});
    }
    group_.slots().publish_drained(first_ + chunk);
    return true;
  }

  SharedGroup& group_;
  const ReduceRule& rule_;
  const void* const send_;
  void* const receive_;
  const Ranges& ranges_;
  const std::size_t element_ = rule_.input_bytes();
  BlockCut cut_;
  std::uint64_t first_ = 0;
  Inputs inputs_;
};

}  // namespace

bool shared_reduce_scatter(SharedGroup* local, const OperationCall& call, const Vectors& vectors,
                           const Ranges& ranges) {
  if (local == nullptr) {
    const Range own = ranges[0];
    return reduce_own({vectors.rule, at(vectors.send, own.begin * vectors.rule.input_bytes()),
                       vectors.receive, own.count});
  }
  SharedGroup& group = *local;
  if (!group.begin(call)) return false;
  ReduceScatter scatter(group, vectors, ranges);
  const bool is_eager = group.selector().algorithm(Operation::kReduceScatter, scatter.bytes()) ==
                        SharedAlgorithm::kEager;
  return is_eager ? scatter.run_eagerly() : scatter.run_by_chunks();
}

namespace {

// Returns how many members' inputs contribute to this member's result: its predecessors and, except
// in exscan, itself.
std::uint32_t scanned_members(const SharedGroup& group, const OperationCall& call) {
  return group.self() + (call.shape.operation == Operation::kScan ? 1 : 0);
}

bool scan_by_chunks(SharedGroup& group, const OperationCall& call, const Vectors& vectors) {
  const ReduceRule& rule = vectors.rule;
  const std::size_t element = rule.input_bytes();
  const std::size_t each = slot_elements(element);
  const std::size_t chunks = divide_up(vectors.count, each);
  const std::uint64_t first = group.slots().take(chunks);
  write_factor(group, rule);
  group.entries().publish();
  if (!group.entries().await_all()) return false;
  Inputs inputs;
  read_factors(group, rule, inputs);
  for (std::size_t index = 0; index < chunks; ++index) {
    const std::uint64_t chunk = first + index;
    const void* const own = at(vectors.send, index * each * element);
    const std::size_t elements = std::min(each, vectors.count - index * each);
    if (!group.slots().await_room(chunk)) return false;
    copy(group.slots().own_slot(chunk), own, elements * element, Stores::kCached);
    group.slots().publish_filled(chunk);
    for (std::uint32_t member = 0; member < group.self(); ++member) {
      if (!group.slots().await_filled(member, chunk)) return false;
      inputs.set(member, group.slots().slot(member, chunk));
    }
    inputs.set(group.self(), own);
    run(rule, inputs, scanned_members(group, call),
        {at(vectors.receive, index * each * rule.output_bytes()), elements});
    group.slots().publish_drained(chunk);
  }
  return true;
}

}  // namespace

bool shared_scan(SharedGroup* local, const OperationCall& call, const Vectors& vectors) {
  if (local == nullptr) {
    if (call.shape.operation == Operation::kScan) return reduce_own(vectors);
    fill_with_identity(vectors.rule.dtype, vectors.rule.op, vectors.receive, vectors.count);
    return true;
  }
  SharedGroup& group = *local;
  if (!group.begin(call)) return false;
  if (group.selector().algorithm(Operation::kScan, vectors.bytes()) != SharedAlgorithm::kEager) {
    return scan_by_chunks(group, call, vectors);
  }
  show_input(group, vectors);
  if (!group.entries().await_all()) return false;
  reduce_published(group, vectors, scanned_members(group, call));
  return true;
}

}  // namespace ivy::comm
