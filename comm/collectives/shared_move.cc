// SPDX-License-Identifier: Apache-2.0
// The collectives of one host that only move data: barrier, broadcast, all_gather, gather, scatter,
// all_to_all. A member that has data fills its slots, and the others copy from there into their own
// memory. No member writes into another member's buffers.
#include <cstring>

#include "comm/collectives/selector.h"
#include "comm/collectives/shared_collectives.h"
#include "comm/collectives/shared_parts.h"

namespace ivy::comm {
namespace {

using namespace shared_parts;

// Returns the size of a broadcast's pieces: small enough that readers copy one piece while the root
// writes the next.
std::size_t broadcast_piece(std::size_t bytes) {
  const std::size_t quarter = divide_up(bytes / kSlotsPerMember, kSliceBytes) * kSliceBytes;
  return std::clamp<std::size_t>(quarter, 8 * 1024, kSlotBytes);
}

// Returns the number of bytes that a block of `total` bytes has in the piece that starts at
// `begin`.
std::size_t piece_bytes(std::size_t total, std::size_t piece, std::size_t begin) {
  return begin < total ? std::min(piece, total - begin) : 0;
}

void copy_unless_same(void* to, const void* from, std::size_t bytes, Stores stores) {
  if (to != from && bytes > 0) copy(to, from, bytes, stores);
}

// Performs the operation of a member that is alone on its host. Returns true.
bool copy_alone(void* to, const void* from, std::size_t bytes) {
  if (to != from && bytes > 0) std::memmove(to, from, bytes);
  return true;
}

// Returns the block of the only member.
template <class Memory>
auto only_block(const Side<Memory>& side) {
  return at(side.data, side.blocks[0].offset);
}

// Bytes that fit into a first-level cache together with their destination.
constexpr std::size_t kReadTwiceBytes = std::size_t{16} << 10;

// Copies into this member's result and into the slot. A single loop would write partial lines of
// the slot if they are not aligned with the result's, and each of those lines would be fetched from
// the processor that has read it.
void copy_to_both(const Copy& result, Stores stores, std::uint8_t* slot) {
  for (std::size_t begin = 0; begin < result.bytes; begin += kReadTwiceBytes) {
    const std::size_t piece = std::min(kReadTwiceBytes, result.bytes - begin);
    copy(slot + begin, at(result.from, begin), piece, Stores::kCached);
    copy(at(result.to, begin), at(result.from, begin), piece, stores);
  }
}

// Sizes that only some members know are sent in the entries' payloads.
void write_size(SharedGroup& group, std::uint64_t size) {
  std::memcpy(group.entries().own_payload(), &size, sizeof size);
}
std::uint64_t read_size(const SharedGroup& group, std::uint32_t member) {
  std::uint64_t size = 0;
  std::memcpy(&size, group.entries().payload(member), sizeof size);
  return size;
}

// The number of bytes that one member sends to another, and the number that the other one expects.
struct Sizes {
  std::uint64_t sent;
  std::uint64_t expected;

  // Returns false if they differ. This member is one of the two; it breaks the communicator and
  // blames the other.
  bool agree(SharedGroup& group, const OperationCall& call, std::uint32_t from,
             std::uint32_t to) const {
    if (sent == expected) return true;
    Failure failure = make_failure(
        FailureKind::kMismatch,
        "operation " + std::to_string(call.sequence) + ", " + describe(call.shape) +
            ", differs between ranks: rank " + std::to_string(group.member(from).rank) + " sends " +
            std::to_string(sent) + " bytes to rank " + std::to_string(group.member(to).rank) +
            ", which expects " + std::to_string(expected));
    failure.rank = group.member(from == group.self() ? to : from).world_rank;
    failure.sequence = call.sequence;
    set_operation(failure, comm_status::name_of(call.shape.operation));
    group.break_with(failure);
    return false;
  }
};

}  // namespace

bool shared_barrier(SharedGroup* local, const OperationCall& call) {
  if (local == nullptr) return true;
  SharedGroup& group = *local;
  if (!group.begin(call)) return false;
  group.entries().publish();
  return group.entries().await_all();
}

namespace {

// A root's buffer, and the other members' destination.
struct Spread {
  void* buffer;
  std::size_t bytes;
  std::uint32_t root;
};

// Copies from the root's registered buffer, which all members can map.
bool broadcast_directly(SharedGroup& group, const Spread& call) {
  if (group.self() == call.root) return group.buffers().await_fetched();
  const BufferLocation location = buffers_of(group, call.root).send;
  const Stores stores = group.selector().stores(Operation::kBroadcast, call.bytes);
  if (!group.buffers().fetch(call.root, {location, call.buffer, call.bytes, stores})) return false;
  group.buffers().publish_fetched();
  return true;
}

// Does not use SlotMove, because members wait only for the root.
bool broadcast_by_chunks(SharedGroup& group, const Spread& call) {
  const std::size_t piece = broadcast_piece(call.bytes);
  const std::size_t chunks = divide_up(call.bytes, piece);
  const Stores stores = group.selector().stores(Operation::kBroadcast, call.bytes);
  const std::uint64_t first = group.slots().take(chunks);
  for (std::size_t index = 0; index < chunks; ++index) {
    const std::uint64_t chunk = first + index;
    std::uint8_t* const piece_data = at(call.buffer, index * piece);
    const std::size_t length = piece_bytes(call.bytes, piece, index * piece);
    if (group.self() == call.root) {
      if (!group.slots().await_room(chunk)) return false;
      copy(group.slots().own_slot(chunk), piece_data, length, Stores::kCached);
      group.slots().publish_filled(chunk);
    } else {
      if (!group.slots().await_filled(call.root, chunk)) return false;
      copy(piece_data, group.slots().slot(call.root, chunk), length, stores);
    }
    group.slots().publish_drained(chunk);
  }
  return true;
}

bool broadcast_large(SharedGroup& group, const Spread& call) {
  if (group.self() == call.root) {
    publish_buffers(group, {registered_memory::location_of(call.buffer, call.bytes), {}});
  }
  group.entries().publish();
  if (group.self() != call.root && !group.entries().await(call.root)) return false;
  if (buffers_of(group, call.root).send.is_registered()) {
    const std::optional<std::uint64_t> capabilities = group.buffers().capabilities();
    if (!capabilities) return false;
    if ((*capabilities & PeerMemory::kCanMap) != 0) return broadcast_directly(group, call);
  }
  return broadcast_by_chunks(group, call);
}

}  // namespace

bool shared_broadcast(SharedGroup* local, const OperationCall& call, const Side<void>& buffer,
                      std::uint32_t root) {
  if (local == nullptr) return true;
  SharedGroup& group = *local;
  if (!group.begin(call)) return false;
  void* const data = buffer.data;
  const std::size_t bytes = buffer.bytes;
  if (group.selector().algorithm(Operation::kBroadcast, bytes) != SharedAlgorithm::kEager) {
    return broadcast_large(group, {data, bytes, root});
  }
  group.entries().expect_bytes(bytes);
  const bool is_inline = bytes <= kInlineBytes;
  if (group.self() == root) {
    if (bytes > 0)
      std::memcpy(is_inline ? group.entries().own_payload() : group.entries().own_eager(), data,
                  bytes);
    group.entries().publish();
    return true;
  }
  group.entries().publish();
  if (!group.entries().await(root)) return false;
  if (bytes > 0)
    std::memcpy(data, is_inline ? group.entries().payload(root) : group.entries().eager(root),
                bytes);
  return true;
}

namespace {

// How blocks are split to go through the slots.
struct SlotCut {
  std::size_t piece = kSlotBytes;  // Bytes of each block in one chunk.
  std::size_t longest = 0;  // Bytes of the longest block, which determines the number of chunks.
  Stores stores = Stores::kCached;
  bool fills = true;  // This member has data for others.
};

// Data that this member takes from another member's slots.
struct IncomingBlock {
  std::uint8_t* to = nullptr;
  std::size_t bytes = 0;
  std::size_t slot_offset = 0;  // Offset in each slot.
};

// Moves blocks through the slots, one piece of each block per chunk. In every chunk, fill(slot,
// begin) writes this member's bytes from `begin` of its blocks on, and take(member) describes the
// data to take from each other member. publish() is called once, when the first chunk is filled.
template <class Fill, class PublishStep, class Take>
struct SlotMove {
  SharedGroup& group;
  SlotCut cut;
  Fill fill;
  PublishStep publish;
  Take take;

  bool run() {
    const std::size_t chunks = divide_up(cut.longest, cut.piece);
    const std::uint64_t first = group.slots().take(chunks);
    for (std::size_t index = 0; index < chunks; ++index) {
      const std::uint64_t chunk = first + index;
      const std::size_t begin = index * cut.piece;
      if (cut.fills) {
        if (!group.slots().await_room(chunk)) return false;
        fill(group.slots().own_slot(chunk), begin);
        group.slots().publish_filled(chunk);
      }
      if (index == 0) publish();
      if (!each_other(group, [&](std::uint32_t from) { return collect(from, chunk, begin); })) {
        return false;
      }
      group.slots().publish_drained(chunk);
    }
    return true;
  }

 private:
  bool collect(std::uint32_t from, std::uint64_t chunk, std::size_t begin) {
    if (!group.entries().await(from)) return false;
    const IncomingBlock incoming = take(from);
    const std::size_t bytes = piece_bytes(incoming.bytes, cut.piece, begin);
    if (bytes == 0) return true;
    if (!group.slots().await_filled(from, chunk)) return false;
    copy(incoming.to + begin, group.slots().slot(from, chunk) + incoming.slot_offset, bytes,
         cut.stores);
    return true;
  }
};
// Clang before version 17 cannot deduce this for an aggregate.
template <class Fill, class PublishStep, class Take>
SlotMove(SharedGroup&, SlotCut, Fill, PublishStep, Take) -> SlotMove<Fill, PublishStep, Take>;

// The buffers of an all_gather.
struct Gathered {
  const void* send;
  void* receive;
  const Blocks& blocks;

  Stores stores(const SharedGroup& group) const {
    return group.selector().stores(Operation::kAllGather, blocks.longest() * blocks.size());
  }
};

// Handles blocks that are too long for the eager area. If this member has not entered yet, its
// entry is published when the first chunk is filled.
bool all_gather_by_chunks(SharedGroup& group, const Gathered& call, bool is_entered) {
  const Blocks& blocks = call.blocks;
  const Block own = blocks[group.self()];
  const Stores stores = call.stores(group);
  const auto fill = [&](std::uint8_t* slot, std::size_t begin) {
    const std::size_t bytes = piece_bytes(own.bytes, kSlotBytes, begin);
    if (bytes == 0) return;
    std::uint8_t* const result = at(call.receive, own.offset + begin);
    if (result == at(call.send, begin)) {
      copy(slot, result, bytes, Stores::kCached);
    } else {
      copy_to_both({result, at(call.send, begin), bytes}, stores, slot);
    }
  };
  const auto publish = [&] {
    if (!is_entered) group.entries().publish();
  };
  const auto take = [&](std::uint32_t member) {
    return IncomingBlock{at(call.receive, blocks[member].offset), blocks[member].bytes, 0};
  };
  return SlotMove{group, SlotCut{kSlotBytes, blocks.longest(), stores}, fill, publish, take}.run();
}

bool all_gather_directly(SharedGroup& group, const Gathered& call) {
  const bool is_whole = each_other(group, [&](std::uint32_t member) {
    const Block block = call.blocks[member];
    return group.buffers().fetch(
        member, {buffers_of(group, member).send, at(call.receive, block.offset), block.bytes,
                 call.stores(group)});
  });
  if (!is_whole) return false;
  group.buffers().publish_fetched();
  return group.buffers().await_fetched();
}

bool all_gather_large(SharedGroup& group, const Gathered& call) {
  const Block own = call.blocks[group.self()];
  const std::size_t longest = call.blocks.longest();
  const BufferLocation location = registered_memory::location_of(call.send, own.bytes);
  publish_buffers(group, {location, {}});
  if (is_surely_by_slots(group, Operation::kAllGather, longest, location)) {
    return all_gather_by_chunks(group, call, false);
  }
  group.entries().publish();
  const auto copy_own = [&] {
    copy_unless_same(at(call.receive, own.offset), call.send, own.bytes, call.stores(group));
  };
  const bool is_copied = is_copied_by_kernel(group, Operation::kAllGather, longest);
  if (is_copied) copy_own();
  const DataPath path = copy_path(group, Operation::kAllGather, longest);
  if (path == DataPath::kBroken) return false;
  if (path == DataPath::kSlots) return all_gather_by_chunks(group, call, true);
  if (!is_copied) copy_own();
  return all_gather_directly(group, call);
}

}  // namespace

bool shared_all_gather(SharedGroup* local, const OperationCall& call, const void* send,
                       const Side<void>& receive) {
  if (local == nullptr) return copy_alone(only_block(receive), send, receive.blocks[0].bytes);
  SharedGroup& group = *local;
  if (!group.begin(call)) return false;
  const std::size_t longest = receive.blocks.longest();
  if (group.selector().algorithm(Operation::kAllGather, longest) != SharedAlgorithm::kEager) {
    return all_gather_large(group, {send, receive.data, receive.blocks});
  }
  group.entries().expect_bytes(longest);
  const bool is_inline = longest <= kInlineBytes;
  const Block own = receive.blocks[group.self()];
  if (own.bytes > 0) {
    std::memcpy(is_inline ? group.entries().own_payload() : group.entries().own_eager(), send,
                own.bytes);
  }
  group.entries().publish();
  copy_unless_same(at(receive.data, own.offset), send, own.bytes, Stores::kCached);
  return each_other(group, [&](std::uint32_t member) {
    if (!group.entries().await(member)) return false;
    const Block block = receive.blocks[member];
    if (block.bytes > 0) {
      std::memcpy(at(receive.data, block.offset),
                  is_inline ? group.entries().payload(member) : group.entries().eager(member),
                  block.bytes);
    }
    return true;
  });
}

namespace {

// A gather. Only the root knows all sizes before the entries arrive.
class Gather {
 public:
  Gather(SharedGroup& group, const RootedBlocks& buffers)
      : group_(group),
        send_(buffers.send.data),
        send_bytes_(buffers.send.bytes),
        receive_(buffers.receive.data),
        blocks_(buffers.receive.blocks),
        root_(buffers.root) {}

  bool is_root() const { return group_.self() == root_; }
  // Returns whether a block of that length is published in the eager area.
  bool is_eager(std::size_t bytes) const {
    return group_.selector().algorithm(Operation::kGather, bytes) == SharedAlgorithm::kEager;
  }

  void publish() const {
    write_size(group_, send_bytes_);
    if (!is_root() && send_bytes_ > 0 && is_eager(send_bytes_)) {
      std::memcpy(group_.entries().own_eager(), send_, send_bytes_);
    }
    group_.entries().publish();
  }

  std::size_t size_of(std::uint32_t member) const {
    return member == group_.self() ? send_bytes_ : read_size(group_, member);
  }
  // Returns the longest block that goes through the slots. All members compute it from the same
  // sizes.
  std::size_t longest_by_slots() const {
    std::size_t longest = 0;
    for (std::uint32_t member = 0; member < group_.size(); ++member) {
      const std::size_t bytes = size_of(member);
      if (member != root_ && !is_eager(bytes)) longest = std::max(longest, bytes);
    }
    return longest;
  }

  void take_eager() const {
    copy_unless_same(at(receive_, blocks_[root_].offset), send_, send_bytes_, Stores::kCached);
    each_other(group_, [&](std::uint32_t member) {
      const Block block = blocks_[member];
      if (is_eager(block.bytes) && block.bytes > 0) {
        std::memcpy(at(receive_, block.offset), group_.entries().eager(member), block.bytes);
      }
      return true;
    });
  }

  bool move() const {
    const std::size_t longest = longest_by_slots();
    const Stores stores = group_.selector().stores(Operation::kGather, longest * group_.size());
    const bool fills = !is_root() && !is_eager(send_bytes_);
    const auto fill = [&](std::uint8_t* slot, std::size_t begin) {
      const std::size_t bytes = piece_bytes(send_bytes_, kSlotBytes, begin);
      if (bytes > 0) copy(slot, at(send_, begin), bytes, Stores::kCached);
    };
    const auto take = [&](std::uint32_t member) {
      if (!is_root() || is_eager(blocks_[member].bytes)) return IncomingBlock();
      return IncomingBlock{at(receive_, blocks_[member].offset), blocks_[member].bytes, 0};
    };
    return SlotMove{group_, SlotCut{kSlotBytes, longest, stores, fills}, fill, [] {}, take}.run();
  }

 private:
  SharedGroup& group_;
  const void* const send_;
  const std::size_t send_bytes_;
  void* const receive_;
  const Blocks& blocks_;
  const std::uint32_t root_;
};

}  // namespace

bool shared_gather(SharedGroup* local, const OperationCall& call, const RootedBlocks& buffers) {
  if (local == nullptr) {
    return copy_alone(only_block(buffers.receive), buffers.send.data, buffers.send.bytes);
  }
  SharedGroup& group = *local;
  if (!group.begin(call)) return false;
  const Gather gather(group, buffers);
  const Blocks& blocks = buffers.receive.blocks;
  gather.publish();
  if (!group.entries().await_all()) return false;
  if (gather.is_root()) {
    for (std::uint32_t member = 0; member < group.size(); ++member) {
      const Sizes sizes = {gather.size_of(member), blocks[member].bytes};
      if (!sizes.agree(group, call, member, group.self())) return false;
    }
    gather.take_eager();
  }
  return gather.move();
}

namespace {

// Blocks that are sent in pieces; each slot holds one piece for every member.
struct ScatterPieces {
  const void* send;
  const Blocks& blocks;
  std::size_t piece;
  std::size_t begin;  // Offset of the piece in every block.
};

std::size_t scatter_piece(std::uint32_t members) {
  return std::max<std::size_t>(kSliceBytes, kSlotBytes / members / kSliceBytes * kSliceBytes);
}

// Writes the piece of each block for another member to its location in a slot.
void write_pieces(const SharedGroup& group, std::uint8_t* slot, const ScatterPieces& pieces) {
  each_other(group, [&](std::uint32_t member) {
    const Block block = pieces.blocks[member];
    const std::size_t bytes = piece_bytes(block.bytes, pieces.piece, pieces.begin);
    if (bytes > 0) {
      copy(slot + member * pieces.piece, at(pieces.send, block.offset + pieces.begin), bytes,
           Stores::kCached);
    }
    return true;
  });
}

}  // namespace

bool shared_scatter(SharedGroup* local, const OperationCall& call, const RootedBlocks& buffers) {
  if (local == nullptr) {
    return copy_alone(buffers.receive.data, only_block(buffers.send), buffers.receive.bytes);
  }
  SharedGroup& group = *local;
  const auto& [send, send_bytes, blocks] = buffers.send;
  void* const receive = buffers.receive.data;
  const std::size_t receive_bytes = buffers.receive.bytes;
  const std::uint32_t root = buffers.root;
  if (!group.begin(call)) return false;
  const std::uint32_t self = group.self();
  const bool is_root = self == root;
  // The root publishes the size of its longest block, the others the size that they expect.
  write_size(group, is_root ? blocks.longest() : receive_bytes);
  group.entries().publish();
  if (!group.entries().await_all()) return false;
  if (is_root) {
    for (std::uint32_t member = 0; member < group.size(); ++member) {
      const std::uint64_t expected = member == self ? receive_bytes : read_size(group, member);
      const Sizes sizes = {blocks[member].bytes, expected};
      if (!sizes.agree(group, call, root, member)) return false;
    }
    copy_unless_same(receive, at(send, blocks[root].offset), receive_bytes, Stores::kCached);
  }
  const std::size_t piece = scatter_piece(group.size());
  const SlotCut cut = {piece, is_root ? blocks.longest() : read_size(group, root),
                       group.selector().stores(Operation::kScatter, receive_bytes), is_root};
  const auto fill = [&](std::uint8_t* slot, std::size_t begin) {
    write_pieces(group, slot, {buffers.send.data, buffers.send.blocks, piece, begin});
  };
  const auto take = [&](std::uint32_t member) {
    return !is_root && member == root ? IncomingBlock{at(receive, 0), receive_bytes, self * piece}
                                      : IncomingBlock();
  };
  return SlotMove{group, cut, fill, [] {}, take}.run();
}

namespace {

class AllToAll {
 public:
  AllToAll(SharedGroup& group, const OperationCall& call, const Side<const void>& send,
           const Side<void>& receive)
      : group_(group),
        call_(call),
        is_even_(call.shape.operation != Operation::kAllToAllV),
        send_(send.data),
        send_blocks_(send.blocks),
        receive_(receive.data),
        receive_blocks_(receive.blocks) {}

  bool run() {
    std::size_t end = 0;
    for (std::uint32_t member = 0; member < group_.size(); ++member) {
      end = std::max(end, send_blocks_[member].offset + send_blocks_[member].bytes);
    }
    const bool is_in_place = send_ == receive_;
    const BufferLocation own =
        is_in_place ? BufferLocation() : registered_memory::location_of(send_, end);
    publish_buffers(group_, {own, {}});
    if (is_even_) {
      longest_ = send_blocks_[0].bytes;
      if (is_surely_by_slots(group_, Operation::kAllToAll, longest_, own)) return run_by_chunks();
    } else {
      publish_sizes();
    }
    group_.entries().publish();
    is_entered_ = true;
    if (!is_even_ && (!group_.entries().await_all() || !sizes_agree())) return false;
    const bool is_copied = is_copied_by_kernel(group_, Operation::kAllToAll, longest_);
    if (is_copied) copy_own();
    switch (copy_path(group_, Operation::kAllToAll, longest_)) {
      case DataPath::kBroken:
        return false;
      case DataPath::kDirect:
        if (!is_copied) copy_own();
        return run_directly();
      case DataPath::kSlots:
        break;
    }
    if (!is_copied) copy_own();
    return run_by_chunks();
  }

 private:
  Stores stores() const {
    return group_.selector().stores(Operation::kAllToAll, longest_ * group_.size());
  }

  void copy_own() {
    const Block own = send_blocks_[group_.self()];
    copy_unless_same(at(receive_, receive_blocks_[group_.self()].offset), at(send_, own.offset),
                     own.bytes, stores());
  }

  // In all_to_all_v, a member's eager area has the sizes, then the offsets, of its blocks.
  static_assert(2 * kMembersMax * sizeof(std::uint64_t) <= kEagerBytes);
  static std::uint64_t* sizes_of(std::uint8_t* eager) {
    return reinterpret_cast<std::uint64_t*>(eager);
  }
  static const std::uint64_t* sizes_of(const std::uint8_t* eager) {
    return reinterpret_cast<const std::uint64_t*>(eager);
  }

  // Every member publishes how much it sends to each other, so that all know the number of chunks.
  void publish_sizes() {
    std::uint64_t* const own = sizes_of(group_.entries().own_eager());
    for (std::uint32_t member = 0; member < group_.size(); ++member) {
      own[member] = send_blocks_[member].bytes;
      own[kMembersMax + member] = send_blocks_[member].offset;
    }
  }

  bool sizes_agree() {
    for (std::uint32_t from = 0; from < group_.size(); ++from) {
      const std::uint64_t* const sizes = from == group_.self()
                                             ? sizes_of(group_.entries().own_eager())
                                             : sizes_of(group_.entries().eager(from));
      for (std::uint32_t to = 0; to < group_.size(); ++to) {
        if (from != to) longest_ = std::max<std::size_t>(longest_, sizes[to]);
      }
      const Sizes to_self = {sizes[group_.self()], receive_blocks_[from].bytes};
      if (!to_self.agree(group_, call_, from, group_.self())) return false;
    }
    return true;
  }

  bool run_directly() {
    const std::uint32_t self = group_.self();
    const Stores stores = this->stores();
    const bool is_whole = each_other(group_, [&](std::uint32_t member) {
      const Block block = receive_blocks_[member];
      BufferLocation location = buffers_of(group_, member).send;
      // Even blocks start at the same offset on all members.
      const std::uint64_t begin =
          is_even_ ? send_blocks_[self].offset
                   : sizes_of(group_.entries().eager(member))[kMembersMax + self];
      location.address += begin;
      location.offset += begin;
      return group_.buffers().fetch(member,
                                    {location, at(receive_, block.offset), block.bytes, stores});
    });
    if (!is_whole) return false;
    group_.buffers().publish_fetched();
    return group_.buffers().await_fetched();
  }

  bool run_by_chunks() {
    const std::size_t piece = scatter_piece(group_.size());
    const auto fill = [&](std::uint8_t* slot, std::size_t begin) {
      write_pieces(group_, slot, {send_, send_blocks_, piece, begin});
    };
    const auto publish = [&] {
      if (is_entered_) return;
      group_.entries().publish();
      copy_own();
    };
    const auto take = [&](std::uint32_t member) {
      const Block block = receive_blocks_[member];
      return IncomingBlock{at(receive_, block.offset), block.bytes, group_.self() * piece};
    };
    return SlotMove{group_, SlotCut{piece, longest_, stores()}, fill, publish, take}.run();
  }

  SharedGroup& group_;
  const OperationCall& call_;
  const bool is_even_;
  const void* const send_;
  const Blocks& send_blocks_;
  void* const receive_;
  const Blocks& receive_blocks_;
  std::size_t longest_ = 0;
  bool is_entered_ = false;
};

// Handles blocks of one size that all fit into an eager area, in one exchange.
bool all_to_all_eagerly(SharedGroup& group, const Side<const void>& send,
                        const Side<void>& receive) {
  const std::size_t bytes = send.blocks[0].bytes;
  const std::uint32_t self = group.self();
  group.entries().expect_bytes(bytes * (group.size() - 1));
  const bool is_inline = bytes * (group.size() - 1) <= kInlineBytes;
  std::uint8_t* const published =
      is_inline ? group.entries().own_payload() : group.entries().own_eager();
  // A member publishes nothing for itself, so that two members' exchange fits into one line.
  const auto slot_offset = [bytes](std::uint32_t from, std::uint32_t to) {
    return (to - (from < to ? 1 : 0)) * bytes;
  };
  each_other(group, [&](std::uint32_t member) {
    if (bytes > 0)
      std::memcpy(published + slot_offset(self, member), at(send.data, send.blocks[member].offset),
                  bytes);
    return true;
  });
  copy_unless_same(at(receive.data, receive.blocks[self].offset),
                   at(send.data, send.blocks[self].offset), bytes, Stores::kCached);
  group.entries().publish();
  return each_other(group, [&](std::uint32_t member) {
    if (!group.entries().await(member)) return false;
    if (bytes == 0) return true;
    const std::uint8_t* const peer_blocks =
        is_inline ? group.entries().payload(member) : group.entries().eager(member);
    std::memcpy(at(receive.data, receive.blocks[member].offset),
                peer_blocks + slot_offset(member, self), bytes);
    return true;
  });
}

}  // namespace

bool shared_all_to_all(SharedGroup* local, const OperationCall& call, const Side<const void>& send,
                       const Side<void>& receive) {
  if (local == nullptr) {
    return copy_alone(only_block(receive), only_block(send), send.blocks[0].bytes);
  }
  SharedGroup& group = *local;
  if (!group.begin(call)) return false;
  const bool is_even = call.shape.operation != Operation::kAllToAllV;
  if (is_even && group.selector().algorithm(Operation::kAllToAll, send.blocks[0].bytes) ==
                     SharedAlgorithm::kEager) {
    return all_to_all_eagerly(group, send, receive);
  }
  return AllToAll(group, call, send, receive).run();
}

}  // namespace ivy::comm
