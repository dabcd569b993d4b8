// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/nccl_double/board.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

namespace nccl_double {
namespace {

constexpr std::size_t kChunkBytes = 64 << 10;
constexpr std::size_t kMailBytes = 16 << 10;

}  // namespace

struct Board::Header {
  std::atomic<int> attached;
};

struct Board::Slot {
  std::atomic<std::uint64_t> shown;  // Chunks.
  std::atomic<std::uint64_t> seen;   // By all ranks.
  char data[kChunkBytes];
};

struct Board::Mailbox {
  std::atomic<std::uint64_t> written;  // Bytes.
  std::atomic<std::uint64_t> read;
  char data[kMailBytes];
};

std::string Board::make_file() {
  const char* const folder = std::getenv("NCCL_DOUBLE_DIR");
  std::string path = std::string(folder != nullptr ? folder : "/dev/shm") + "/nccl-double-XXXXXX";
  const int file = mkstemp(path.data());
  if (file < 0) return "";
  close(file);
  return path;
}

void Board::make_file(const std::string& path) {
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file >= 0) close(file);
}

Board::Board(std::string path, int rank, int size)
    : path_(std::move(path)), rank_(rank), size_(size) {}

Board::~Board() {
  if (memory_ != nullptr) munmap(memory_, total_bytes());
}

Board::Slot& Board::slot(int rank) const {
  char* const slots = memory_ + 4096;
  return reinterpret_cast<Slot*>(slots)[rank];
}

Board::Mailbox& Board::mailbox(int from, int to) const {
  char* const boxes = memory_ + 4096 + sizeof(Slot) * static_cast<std::size_t>(size_);
  return reinterpret_cast<Mailbox*>(boxes)[from * size_ + to];
}

std::size_t Board::total_bytes() const {
  const auto ranks = static_cast<std::size_t>(size_);
  return 4096 + sizeof(Slot) * ranks + sizeof(Mailbox) * ranks * ranks;
}

template <class Condition>
bool Board::await(Condition condition) const {
  for (int round = 0; !condition(); ++round) {
    if (is_aborted_) return false;
    if (round < 100) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
  return !is_aborted_;
}

bool Board::attach() {
  const int file = open(path_.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return false;
  if (ftruncate(file, static_cast<off_t>(total_bytes())) != 0) return false;
  void* const memory = mmap(nullptr, total_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (memory == MAP_FAILED) return false;
  memory_ = static_cast<char*>(memory);
  auto* const header = reinterpret_cast<Header*>(memory_);
  const int before = header->attached.fetch_add(1);
  if (before + 1 == size_) unlink(path_.c_str());
  if (await([&] { return header->attached.load() >= size_; })) return true;
  unlink(path_.c_str());
  return false;
}

bool Board::show(const char* own, std::size_t bytes, const See& see) {
  for (std::size_t offset = 0; offset < bytes || offset == 0; offset += kChunkBytes) {
    const std::size_t count = std::min(kChunkBytes, bytes - offset);
    const std::uint64_t number = chunks_++;
    for (int rank = 0; rank < size_; ++rank) {
      if (!await([&] { return slot(rank).seen.load() >= number; })) return false;
    }
    if (own != nullptr) std::memcpy(slot(rank_).data, own + offset, count);
    slot(rank_).shown.store(number + 1);
    for (int rank = 0; rank < size_; ++rank) {
      if (!await([&] { return slot(rank).shown.load() >= number + 1; })) return false;
      see(rank, offset, slot(rank).data, count);
    }
    slot(rank_).seen.store(number + 1);
  }
  return true;
}

bool Board::move(Transfer& transfer) {
  Mailbox& box = transfer.is_send ? mailbox(rank_, transfer.peer) : mailbox(transfer.peer, rank_);
  const std::uint64_t written = box.written.load();
  const std::uint64_t read = box.read.load();
  const std::uint64_t place = transfer.is_send ? written : read;
  const std::uint64_t room = transfer.is_send ? kMailBytes - (written - read) : written - read;
  const std::size_t count =
      std::min({static_cast<std::size_t>(room), transfer.bytes - transfer.done,
                kMailBytes - static_cast<std::size_t>(place % kMailBytes)});
  if (count == 0) return false;
  char* const mail = box.data + place % kMailBytes;
  char* const data = transfer.data + transfer.done;
  std::memcpy(transfer.is_send ? mail : data, transfer.is_send ? data : mail, count);
  (transfer.is_send ? box.written : box.read).store(place + count);
  transfer.done += count;
  return true;
}

bool Board::transfer(std::vector<Transfer>& transfers) {
  return await([&] {
    bool is_done = true;
    for (std::size_t i = 0; i < transfers.size(); ++i) {
      // Transfers of one pair and direction run in the order of their calls.
      const bool is_turn = std::none_of(
          transfers.begin(), transfers.begin() + static_cast<std::ptrdiff_t>(i),
          [&](const Transfer& before) {
            return before.peer == transfers[i].peer && before.is_send == transfers[i].is_send &&
                   before.done < before.bytes;
          });
      while (is_turn && transfers[i].done < transfers[i].bytes && move(transfers[i])) {
      }
      is_done = is_done && transfers[i].done == transfers[i].bytes;
    }
    return is_done;
  });
}

}  // namespace nccl_double
