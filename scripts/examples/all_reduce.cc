// Sums a vector over all ranks, and says what became of it.
//
//   c++ -std=c++20 all_reduce.cc $(pkg-config --cflags --libs ivycomm) -o all_reduce
//   ivyrun -n 4 ./all_reduce
#include <cstdio>
#include <ivycomm.hpp>
#include <optional>
#include <span>
#include <vector>

int main() try {
  ivycomm::World world;
  std::vector<double> x(1'000'000, world.rank() + 1.0);
  world.all_reduce(x);

  // Ranks of one parity, in a group of their own.
  std::optional<ivycomm::Group> half = ivycomm::split(world, world.rank() % 2);
  std::vector<float> y(10, 1.0f);
  ivycomm::Work work = half->start_all_reduce(y);
  work.wait();

  std::vector<double> firsts(static_cast<std::size_t>(world.size()));
  world.all_gather(std::span(x).first(1), firsts);

  const double expected = world.size() * (world.size() + 1) / 2.0;
  const bool is_right = x.front() == expected && x.back() == expected &&
                        firsts.back() == expected && y.front() == static_cast<float>(half->size());
  std::printf("rank %d of %d: sum %g, %s\n", world.rank(), world.size(), x.front(),
              is_right ? "right" : "wrong");
  return is_right ? 0 : 1;
} catch (const ivycomm::Error& error) {
  std::fprintf(stderr, "%s: %s\n", ivy_code_name(error.code()), error.what());
  return 1;
}
