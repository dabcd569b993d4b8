// The collectives of one host that only move data: barrier, broadcast, all_gather, gather, scatter,
// all_to_all. A member that has data fills its slots, the others copy from there into their own
// memory: nobody writes into another one's buffers.
#include <array>
#include <cstring>

#include "comm/collectives/selector.h"
#include "comm/collectives/shared_collectives.h"
#include "comm/collectives/shared_parts.h"

namespace ivy::comm {
namespace {

using namespace shared_parts;

// A piece of a broadcast: small enough that the readers copy the first while the root writes the
// second.
std::size_t broadcast_piece(std::size_t bytes) {
  const std::size_t quarter = divide_up(bytes / kSlotsPerMember, kSliceBytes) * kSliceBytes;
  return std::clamp<std::size_t>(quarter, 8 * 1024, kSlotBytes);
}

std::size_t piece_bytes(std::size_t total, std::size_t piece, std::size_t chunk) {
  const std::size_t begin = chunk * piece;
  return begin < total ? std::min(piece, total - begin) : 0;
}

void copy_unless_same(void* to, const void* from, std::size_t bytes, Stores stores) {
  if (to != from && bytes > 0) copy(to, from, bytes, stores);
}

// The most bytes that a first-level cache holds beside their destination.
constexpr std::size_t kReadTwiceBytes = std::size_t{16} << 10;

// Copies into the own result and into the slot. In one loop, lines of the slot that do not begin
// where the result's do would be written by halves, and each fetched from the processor that has
// read it.
void copy_to_both(std::uint8_t* result, Stores stores, std::uint8_t* slot, const std::uint8_t* from,
                  std::size_t bytes) {
  for (std::size_t begin = 0; begin < bytes; begin += kReadTwiceBytes) {
    const std::size_t piece = std::min(kReadTwiceBytes, bytes - begin);
    copy(slot + begin, from + begin, piece, Stores::kCached);
    copy(result + begin, from + begin, piece, stores);
  }
}

// Sizes that only some members know travel in the entries' payloads.
void write_size(SharedGroup& group, std::uint64_t size) {
  std::memcpy(group.entries().own_payload(), &size, sizeof size);
}
std::uint64_t read_size(const SharedGroup& group, std::uint32_t member) {
  std::uint64_t size = 0;
  std::memcpy(&size, group.entries().payload(member), sizeof size);
  return size;
}

// A size mismatch, found by one of the two members, which blames the other.
Failure size_mismatch(const SharedGroup& group, const OperationCall& call, std::uint32_t from,
                      std::uint32_t to, std::uint64_t sent, std::uint64_t expected) {
  Failure failure = make_failure(
      FailureKind::kMismatch,
      "operation " + std::to_string(call.sequence) + ", " + describe(call.shape) +
          ", differs between ranks: rank " + std::to_string(group.member(from).rank) + " sends " +
          std::to_string(sent) + " bytes to rank " + std::to_string(group.member(to).rank) +
          ", which expects " + std::to_string(expected));
  failure.rank = group.member(from == group.self() ? to : from).world_rank;
  failure.sequence = call.sequence;
  set_operation(failure, comm_status::name_of(call.shape.operation));
  return failure;
}

}  // namespace

bool shared_barrier(SharedGroup& group, const OperationCall& call) {
  if (!group.begin(call)) return false;
  group.entries().publish();
  return group.entries().await_all();
}

namespace {

// Copies out of the root's registered buffer, which all members can map.
bool broadcast_directly(SharedGroup& group, void* buffer, std::size_t bytes, std::uint32_t root) {
  if (group.self() == root) return group.buffers().await_fetched();
  const BufferPlace place = places_of(group, root).send;
  const Stores stores = group.selector().stores(Operation::kBroadcast, bytes);
  if (!group.buffers().fetch(root, {place, buffer, bytes, stores})) return false;
  group.buffers().publish_fetched();
  return true;
}

bool broadcast_large(SharedGroup& group, void* buffer, std::size_t bytes, std::uint32_t root) {
  const bool is_root = group.self() == root;
  const std::size_t piece = broadcast_piece(bytes);
  const std::size_t chunks = divide_up(bytes, piece);
  const Stores stores = group.selector().stores(Operation::kBroadcast, bytes);
  if (is_root) {
    const bool maps = group.selector().maps(Operation::kBroadcast, bytes);
    show_places(group, {maps ? registered_memory::place_of(buffer, bytes) : BufferPlace(), {}});
  }
  group.entries().publish();
  if (!is_root && !group.entries().await(root)) return false;
  if (places_of(group, root).send.is_registered()) {
    const std::optional<std::uint64_t> reach = group.buffers().reach();
    if (!reach) return false;
    if ((*reach & PeerMemory::kCanMap) != 0) {
      return broadcast_directly(group, buffer, bytes, root);
    }
  }
  const std::uint64_t first = group.slots().take(chunks);
  for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
    std::uint8_t* const place = at(buffer, chunk * piece);
    const std::size_t length = piece_bytes(bytes, piece, chunk);
    if (group.self() == root) {
      if (!group.slots().await_room(first + chunk)) return false;
      copy(group.slots().slot(root, first + chunk), place, length, Stores::kCached);
      group.slots().publish_filled(first + chunk);
    } else {
      if (!group.slots().await_filled(root, first + chunk)) return false;
      copy(place, group.slots().slot(root, first + chunk), length, stores);
    }
    group.slots().publish_drained(first + chunk);
  }
  return true;
}

}  // namespace

bool shared_broadcast(SharedGroup& group, const OperationCall& call, void* buffer,
                      std::size_t bytes, std::uint32_t root) {
  if (!group.begin(call)) return false;
  if (group.selector().algorithm(Operation::kBroadcast, bytes) != Algorithm::kEager) {
    return broadcast_large(group, buffer, bytes, root);
  }
  group.entries().expect_shown(bytes);
  const bool is_inline = bytes <= kInlineBytes;
  if (group.self() == root) {
    if (bytes > 0)
      std::memcpy(is_inline ? group.entries().own_payload() : group.entries().own_eager(), buffer,
                  bytes);
    group.entries().publish();
    return true;
  }
  group.entries().publish();
  if (!group.entries().await(root)) return false;
  if (bytes > 0)
    std::memcpy(buffer, is_inline ? group.entries().payload(root) : group.entries().eager(root),
                bytes);
  return true;
}

namespace {

// Blocks too long to be shown: everybody fills, everybody copies the others' blocks. Not entered
// yet: the entry goes out behind the first chunk.
bool all_gather_by_chunks(SharedGroup& group, const void* send, void* receive, const Blocks& blocks,
                          bool is_entered) {
  const std::uint32_t self = group.self();
  const std::size_t chunks = divide_up(blocks.longest(), kSlotBytes);
  const std::uint64_t first = group.slots().take(chunks);
  const Stores stores =
      group.selector().stores(Operation::kAllGather, blocks.longest() * blocks.size());
  for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
    if (!group.slots().await_room(first + chunk)) return false;
    const std::size_t begin = chunk * kSlotBytes;
    const std::size_t own_bytes = piece_bytes(blocks[self].bytes, kSlotBytes, chunk);
    if (own_bytes > 0) {
      std::uint8_t* const own_place = at(receive, blocks[self].offset + begin);
      std::uint8_t* const slot = group.slots().slot(self, first + chunk);
      if (own_place == at(send, begin)) {
        copy(slot, own_place, own_bytes, Stores::kCached);
      } else {
        copy_to_both(own_place, stores, slot, at(send, begin), own_bytes);
      }
    }
    group.slots().publish_filled(first + chunk);
    if (!is_entered) group.entries().publish();
    is_entered = true;
    const bool is_whole = each_other(group, [&](std::uint32_t member) {
      if (!group.entries().await(member)) return false;
      const std::size_t bytes = piece_bytes(blocks[member].bytes, kSlotBytes, chunk);
      if (bytes == 0) return true;
      if (!group.slots().await_filled(member, first + chunk)) return false;
      copy(at(receive, blocks[member].offset + begin), group.slots().slot(member, first + chunk),
           bytes, stores);
      return true;
    });
    if (!is_whole) return false;
    group.slots().publish_drained(first + chunk);
  }
  return true;
}

bool all_gather_directly(SharedGroup& group, void* receive, const Blocks& blocks, Stores stores) {
  const bool is_whole = each_other(group, [&](std::uint32_t member) {
    const Block block = blocks[member];
    return group.buffers().fetch(
        member, {places_of(group, member).send, at(receive, block.offset), block.bytes, stores});
  });
  if (!is_whole) return false;
  group.buffers().publish_fetched();
  return group.buffers().await_fetched();
}

bool all_gather_large(SharedGroup& group, const void* send, void* receive, const Blocks& blocks) {
  const Block own = blocks[group.self()];
  const std::size_t longest = blocks.longest();
  const Stores stores = group.selector().stores(Operation::kAllGather, longest * blocks.size());
  const BufferPlace place = registered_memory::place_of(send, own.bytes);
  show_places(group, {place, {}});
  if (is_surely_by_slots(group, Operation::kAllGather, longest, place)) {
    return all_gather_by_chunks(group, send, receive, blocks, false);
  }
  group.entries().publish();
  const auto copy_own = [&] { copy_unless_same(at(receive, own.offset), send, own.bytes, stores); };
  const bool is_copied = is_copied_by_kernel(group, Operation::kAllGather, longest);
  if (is_copied) copy_own();
  switch (way_of_copy(group, Operation::kAllGather, longest)) {
    case Way::kBroken:
      return false;
    case Way::kSlots:
      return all_gather_by_chunks(group, send, receive, blocks, true);
    case Way::kDirect:
      if (!is_copied) copy_own();
      return all_gather_directly(group, receive, blocks, stores);
  }
  return false;
}

}  // namespace

bool shared_all_gather(SharedGroup& group, const OperationCall& call, const void* send,
                       void* receive, const Blocks& blocks) {
  if (!group.begin(call)) return false;
  const std::size_t longest = blocks.longest();
  if (group.selector().algorithm(Operation::kAllGather, longest) != Algorithm::kEager) {
    return all_gather_large(group, send, receive, blocks);
  }
  group.entries().expect_shown(longest);
  const bool is_inline = longest <= kInlineBytes;
  const Block own = blocks[group.self()];
  if (own.bytes > 0) {
    std::memcpy(is_inline ? group.entries().own_payload() : group.entries().own_eager(), send,
                own.bytes);
  }
  group.entries().publish();
  copy_unless_same(at(receive, own.offset), send, own.bytes, Stores::kCached);
  return each_other(group, [&](std::uint32_t member) {
    if (!group.entries().await(member)) return false;
    const Block block = blocks[member];
    if (block.bytes > 0) {
      std::memcpy(at(receive, block.offset),
                  is_inline ? group.entries().payload(member) : group.entries().eager(member),
                  block.bytes);
    }
    return true;
  });
}

bool shared_gather(SharedGroup& group, const OperationCall& call, const void* send,
                   std::size_t send_bytes, void* receive, const Blocks& blocks,
                   std::uint32_t root) {
  if (!group.begin(call)) return false;
  const std::uint32_t self = group.self();
  const auto is_shown = [&](std::size_t bytes) {
    return group.selector().algorithm(Operation::kGather, bytes) == Algorithm::kEager;
  };
  const bool is_eager = is_shown(send_bytes);
  write_size(group, send_bytes);
  if (is_eager && send_bytes > 0 && self != root)
    std::memcpy(group.entries().own_eager(), send, send_bytes);
  group.entries().publish();
  if (!group.entries().await_all()) return false;
  // Everybody knows every size now, and so how many chunks there are.
  std::size_t longest = 0;
  for (std::uint32_t member = 0; member < group.size(); ++member) {
    const std::uint64_t bytes = member == self ? send_bytes : read_size(group, member);
    if (self == root && bytes != blocks[member].bytes) {
      group.break_with(size_mismatch(group, call, member, root, bytes, blocks[member].bytes));
      return false;
    }
    if (member != root && !is_shown(bytes)) longest = std::max<std::size_t>(longest, bytes);
  }
  const std::size_t chunks = divide_up(longest, kSlotBytes);
  const std::uint64_t first = group.slots().take(chunks);
  if (self == root) {
    copy_unless_same(at(receive, blocks[root].offset), send, send_bytes, Stores::kCached);
    each_other(group, [&](std::uint32_t member) {
      if (is_shown(blocks[member].bytes) && blocks[member].bytes > 0) {
        std::memcpy(at(receive, blocks[member].offset), group.entries().eager(member),
                    blocks[member].bytes);
      }
      return true;
    });
  }
  for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
    const std::size_t begin = chunk * kSlotBytes;
    if (self != root) {
      const std::size_t bytes = is_eager ? 0 : piece_bytes(send_bytes, kSlotBytes, chunk);
      if (bytes > 0) {
        if (!group.slots().await_room(first + chunk)) return false;
        copy(group.slots().slot(self, first + chunk), at(send, begin), bytes, Stores::kCached);
      }
      group.slots().publish_filled(first + chunk);
    } else {
      const bool is_whole = each_other(group, [&](std::uint32_t member) {
        if (is_shown(blocks[member].bytes)) return true;
        const std::size_t bytes = piece_bytes(blocks[member].bytes, kSlotBytes, chunk);
        if (bytes == 0) return true;
        if (!group.slots().await_filled(member, first + chunk)) return false;
        copy(at(receive, blocks[member].offset + begin), group.slots().slot(member, first + chunk),
             bytes, group.selector().stores(Operation::kGather, longest * group.size()));
        return true;
      });
      if (!is_whole) return false;
    }
    group.slots().publish_drained(first + chunk);
  }
  return true;
}

namespace {

// A slot cut so that it holds a piece for every member.
std::size_t dealt_piece(std::uint32_t members) {
  return std::max<std::size_t>(kSliceBytes, kSlotBytes / members / kSliceBytes * kSliceBytes);
}

}  // namespace

bool shared_scatter(SharedGroup& group, const OperationCall& call, const void* send,
                    const Blocks& blocks, void* receive, std::size_t receive_bytes,
                    std::uint32_t root) {
  if (!group.begin(call)) return false;
  const std::uint32_t self = group.self();
  // The root shows its longest block, the others what they expect.
  write_size(group, self == root ? blocks.longest() : receive_bytes);
  group.entries().publish();
  if (!group.entries().await_all()) return false;
  const std::size_t longest = self == root ? blocks.longest() : read_size(group, root);
  if (self == root) {
    for (std::uint32_t member = 0; member < group.size(); ++member) {
      const std::uint64_t expected = member == self ? receive_bytes : read_size(group, member);
      if (expected == blocks[member].bytes) continue;
      group.break_with(size_mismatch(group, call, root, member, blocks[member].bytes, expected));
      return false;
    }
    copy_unless_same(receive, at(send, blocks[root].offset), receive_bytes, Stores::kCached);
  }
  const std::size_t piece = dealt_piece(group.size());
  const std::size_t chunks = divide_up(longest, piece);
  const std::uint64_t first = group.slots().take(chunks);
  for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
    const std::size_t begin = chunk * piece;
    if (self == root) {
      if (!group.slots().await_room(first + chunk)) return false;
      each_other(group, [&](std::uint32_t member) {
        const std::size_t bytes = piece_bytes(blocks[member].bytes, piece, chunk);
        if (bytes > 0) {
          copy(group.slots().slot(root, first + chunk) + member * piece,
               at(send, blocks[member].offset + begin), bytes, Stores::kCached);
        }
        return true;
      });
      group.slots().publish_filled(first + chunk);
    } else {
      if (!group.slots().await_filled(root, first + chunk)) return false;
      const std::size_t bytes = piece_bytes(receive_bytes, piece, chunk);
      if (bytes > 0) {
        copy(at(receive, begin), group.slots().slot(root, first + chunk) + self * piece, bytes,
             group.selector().stores(Operation::kScatter, receive_bytes));
      }
    }
    group.slots().publish_drained(first + chunk);
  }
  return true;
}

namespace {

class AllToAll {
 public:
  AllToAll(SharedGroup& group, const OperationCall& call, const void* send,
           const Blocks& send_blocks, void* receive, const Blocks& receive_blocks)
      : group_(group),
        call_(call),
        is_even_(call.shape.operation != Operation::kAllToAllV),
        send_(send),
        send_blocks_(send_blocks),
        receive_(receive),
        receive_blocks_(receive_blocks) {}

  bool run() {
    std::size_t end = 0;
    for (std::uint32_t member = 0; member < group_.size(); ++member) {
      end = std::max(end, send_blocks_[member].offset + send_blocks_[member].bytes);
    }
    const bool is_in_place = send_ == receive_;
    const BufferPlace own = is_in_place ? BufferPlace() : registered_memory::place_of(send_, end);
    show_places(group_, {own, {}});
    if (is_even_) {
      longest_ = send_blocks_[0].bytes;
      if (is_surely_by_slots(group_, Operation::kAllToAll, longest_, own)) return run_by_chunks();
    } else {
      show_sizes();
    }
    group_.entries().publish();
    is_entered_ = true;
    if (!is_even_ && (!group_.entries().await_all() || !sizes_agree())) return false;
    const bool is_copied = is_copied_by_kernel(group_, Operation::kAllToAll, longest_);
    if (is_copied) copy_own();
    switch (way_of_copy(group_, Operation::kAllToAll, longest_)) {
      case Way::kBroken:
        return false;
      case Way::kDirect:
        if (!is_copied) copy_own();
        return run_directly();
      case Way::kSlots:
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

  // Stores how much goes to each member, and where it begins.
  static_assert(2 * kMembersMax * sizeof(std::uint64_t) <= kEagerBytes);
  static std::uint64_t* sizes_of(std::uint8_t* eager) {
    return reinterpret_cast<std::uint64_t*>(eager);
  }
  static const std::uint64_t* sizes_of(const std::uint8_t* eager) {
    return reinterpret_cast<const std::uint64_t*>(eager);
  }

  // Everybody shows what it sends to whom: only then all know how many chunks there are.
  void show_sizes() {
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
      const std::uint64_t to_self = sizes[group_.self()];
      if (to_self == receive_blocks_[from].bytes) continue;
      group_.break_with(
          size_mismatch(group_, call_, from, group_.self(), to_self, receive_blocks_[from].bytes));
      return false;
    }
    return true;
  }

  bool run_directly() {
    const std::uint32_t self = group_.self();
    const Stores stores = this->stores();
    const bool is_whole = each_other(group_, [&](std::uint32_t member) {
      const Block block = receive_blocks_[member];
      BufferPlace place = places_of(group_, member).send;
      // Even blocks begin at the same place in everybody's memory.
      const std::uint64_t begin =
          is_even_ ? send_blocks_[self].offset
                   : sizes_of(group_.entries().eager(member))[kMembersMax + self];
      place.address += begin;
      place.offset += begin;
      return group_.buffers().fetch(member,
                                    {place, at(receive_, block.offset), block.bytes, stores});
    });
    if (!is_whole) return false;
    group_.buffers().publish_fetched();
    return group_.buffers().await_fetched();
  }

  bool run_by_chunks() {
    const std::size_t piece = dealt_piece(group_.size());
    const std::size_t chunks = divide_up(longest_, piece);
    const std::uint64_t first = group_.slots().take(chunks);
    const Stores stores = this->stores();
    for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
      if (!group_.slots().await_room(first + chunk)) return false;
      std::uint8_t* const slot = group_.slots().slot(group_.self(), first + chunk);
      each_other(group_, [&](std::uint32_t member) {
        const Block block = send_blocks_[member];
        const std::size_t bytes = piece_bytes(block.bytes, piece, chunk);
        if (bytes > 0) {
          copy(slot + member * piece, at(send_, block.offset + chunk * piece), bytes,
               Stores::kCached);
        }
        return true;
      });
      group_.slots().publish_filled(first + chunk);
      if (!is_entered_) {
        group_.entries().publish();
        is_entered_ = true;
        copy_own();
      }
      const bool is_whole = each_other(group_, [&](std::uint32_t member) {
        if (!group_.entries().await(member)) return false;
        const Block block = receive_blocks_[member];
        const std::size_t bytes = piece_bytes(block.bytes, piece, chunk);
        if (bytes == 0) return true;
        if (!group_.slots().await_filled(member, first + chunk)) return false;
        copy(at(receive_, block.offset + chunk * piece),
             group_.slots().slot(member, first + chunk) + group_.self() * piece, bytes, stores);
        return true;
      });
      if (!is_whole) return false;
      group_.slots().publish_drained(first + chunk);
    }
    return true;
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

// Blocks of one size that all fit into an eager area: one exchange.
bool all_to_all_eagerly(SharedGroup& group, const void* send, const Blocks& send_blocks,
                        void* receive, const Blocks& receive_blocks) {
  const std::size_t bytes = send_blocks[0].bytes;
  const std::uint32_t self = group.self();
  group.entries().expect_shown(bytes * (group.size() - 1));
  const bool is_inline = bytes * (group.size() - 1) <= kInlineBytes;
  std::uint8_t* const shown =
      is_inline ? group.entries().own_payload() : group.entries().own_eager();
  // A member shows nothing for itself, so that what two members exchange fits into one line.
  const auto place = [bytes](std::uint32_t from, std::uint32_t to) {
    return (to - (from < to ? 1 : 0)) * bytes;
  };
  each_other(group, [&](std::uint32_t member) {
    if (bytes > 0)
      std::memcpy(shown + place(self, member), at(send, send_blocks[member].offset), bytes);
    return true;
  });
  copy_unless_same(at(receive, receive_blocks[self].offset), at(send, send_blocks[self].offset),
                   bytes, Stores::kCached);
  group.entries().publish();
  return each_other(group, [&](std::uint32_t member) {
    if (!group.entries().await(member)) return false;
    if (bytes == 0) return true;
    const std::uint8_t* const theirs =
        is_inline ? group.entries().payload(member) : group.entries().eager(member);
    std::memcpy(at(receive, receive_blocks[member].offset), theirs + place(member, self), bytes);
    return true;
  });
}

}  // namespace

bool shared_all_to_all(SharedGroup& group, const OperationCall& call, const void* send,
                       const Blocks& send_blocks, void* receive, const Blocks& receive_blocks) {
  if (!group.begin(call)) return false;
  const bool is_even = call.shape.operation != Operation::kAllToAllV;
  if (is_even &&
      group.selector().algorithm(Operation::kAllToAll, send_blocks[0].bytes) == Algorithm::kEager) {
    return all_to_all_eagerly(group, send, send_blocks, receive, receive_blocks);
  }
  return AllToAll(group, call, send, send_blocks, receive, receive_blocks).run();
}

}  // namespace ivy::comm
