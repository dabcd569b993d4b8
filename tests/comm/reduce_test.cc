// SPDX-License-Identifier: Apache-2.0
// Every type, operation, form, number of inputs and instruction set, compared bit by bit with the
// plain reference.
#include "comm/reduce/reduce.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <complex>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "tests/comm/kernels_under_test.h"
#include "tests/comm/reduce_reference.h"

namespace ivy::comm {
namespace {

constexpr std::size_t kMaxElements = 4999;  // Enough for aligned lines in every type.

struct Offsets {
  std::size_t inputs;
  std::size_t output;
};
// Offsets: aligned, unaligned, odd halves of a complex number, and whole elements.
constexpr Offsets kOffsets[] = {{0, 0}, {1, 3}, {16, 4}, {8, 48}};

// One reduction with its inputs and expected results.
struct Question {
  Reduction reduction;
  std::vector<double> factors;
  std::vector<Bytes> inputs;
  Bytes expected;
  std::size_t in_bytes;
  std::size_t out_bytes;
};

std::unique_ptr<Question> make_question(Dtype dtype, ReduceOp op, Form in, Form out,
                                        std::size_t inputs, std::size_t count) {
  auto question = std::make_unique<Question>();
  question->reduction = {.dtype = dtype, .op = op, .input_form = in, .output_form = out};
  question->reduction.divisor = static_cast<std::uint32_t>(inputs);
  question->in_bytes = form_bytes(dtype, op, in);
  question->out_bytes = form_bytes(dtype, op, out);
  for (std::size_t j = 0; j < inputs; ++j) {
    question->inputs.push_back(
        interesting_elements(dtype, op, in, count, static_cast<std::uint32_t>(17 * j + inputs)));
    question->factors.push_back(j == 0 ? 1.0 / 3.0 : 0.7 * static_cast<double>(j) - 2.0);
  }
  if (op == ReduceOp::kPremulSum && in == Form::kElement) {
    question->reduction.factors = question->factors.data();
  }
  question->expected = reference_reduce(question->reduction, question->inputs, count);
  return question;
}

// Returns a description of the first wrong element, or an empty string.
std::string difference(const std::uint8_t* got, const Bytes& expected, std::size_t bytes,
                       std::size_t element) {
  if (std::memcmp(got, expected.data(), bytes) == 0) return "";
  for (std::size_t i = 0; i < bytes; ++i) {
    if (got[i] == expected[i]) continue;
    const std::size_t begin = i / element * element;
    std::string text = "element " + std::to_string(i / element) + ":";
    for (std::size_t b = begin; b < begin + element; ++b) {
      char pair[16];
      std::snprintf(pair, sizeof pair, " %02x/%02x", got[b], expected[b]);
      text += pair;
    }
    return text + " (got/expected)";
  }
  return "";
}

using Param = std::tuple<const KernelTable*, Dtype>;

class ReduceTest : public ::testing::TestWithParam<Param> {
 protected:
  const KernelTable& table() { return *std::get<0>(GetParam()); }
  Dtype dtype() { return std::get<1>(GetParam()); }

  // Calls `body(op, in, out)` for every operation and form that the type supports.
  template <class Body>
  void for_each_choice(const Body& body) {
    for (const ReduceOp op : all_ops()) {
      if (!is_reducible(dtype(), op)) continue;
      for (const Form in : {Form::kElement, Form::kPartial}) {
        for (const Form out : {Form::kElement, Form::kPartial}) {
          SCOPED_TRACE(std::string(reduce_op_name(op)) +
                       (in == Form::kElement ? " of elements" : " of partials") +
                       (out == Form::kElement ? " to elements" : " to partials"));
          body(op, in, out);
          if (HasFatalFailure()) return;
        }
      }
    }
  }

  void check(const Question& question, std::size_t count, const Offsets& offsets, Stores stores,
             bool twice) {
    Reduction reduction = question.reduction;
    reduction.stores = stores;
    std::vector<std::unique_ptr<GuardedBuffer>> buffers;
    std::vector<const void*> inputs;
    for (const Bytes& input : question.inputs) {
      buffers.push_back(std::make_unique<GuardedBuffer>(count * question.in_bytes, offsets.inputs));
      std::memcpy(buffers.back()->data(), input.data(), count * question.in_bytes);
      inputs.push_back(buffers.back()->data());
    }
    const std::size_t bytes = count * question.out_bytes;
    GuardedBuffer output(bytes, offsets.output);
    GuardedBuffer second(bytes, offsets.inputs);
    reduce_with(
        table(), reduction,
        {inputs.data(), inputs.size(), output.data(), twice ? second.data() : nullptr, count});
    ASSERT_EQ("", difference(output.data(), question.expected, bytes, question.out_bytes));
    if (twice) {
      ASSERT_EQ("", difference(second.data(), question.expected, bytes, question.out_bytes));
    }
    ASSERT_TRUE(output.is_intact());
    ASSERT_TRUE(second.is_intact());
  }
};

TEST_P(ReduceTest, EqualsTheReferenceBitByBit) {
  for_each_choice([&](ReduceOp op, Form in, Form out) {
    for (const std::size_t inputs : {1, 2, 3, 4, 5, 8, 16}) {
      SCOPED_TRACE(std::to_string(inputs) + " inputs");
      const std::size_t most = inputs <= 3 ? kMaxElements : 1000;
      const auto question = make_question(dtype(), op, in, out, inputs, most);
      for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{7},
                                      std::size_t{997}, std::size_t{1000}, most}) {
        for (const Offsets& offsets : kOffsets) {
          SCOPED_TRACE(std::to_string(count) + " elements, output at " +
                       std::to_string(offsets.output));
          const bool odd = (offsets.output + inputs) % 3 == 0;
          ASSERT_NO_FATAL_FAILURE(check(*question, count, offsets, Stores::kCached, odd));
          ASSERT_NO_FATAL_FAILURE(check(*question, count, offsets, Stores::kStreaming, !odd));
        }
      }
    }
  });
}

TEST_P(ReduceTest, ReducesEveryCountUpToSomeBlocks) {
  for_each_choice([&](ReduceOp op, Form in, Form out) {
    const auto question = make_question(dtype(), op, in, out, 3, 300);
    for (std::size_t count = 0; count <= 300; ++count) {
      SCOPED_TRACE(std::to_string(count) + " elements");
      ASSERT_NO_FATAL_FAILURE(check(*question, count, {2, 6}, Stores::kCached, true));
    }
  });
}

TEST_P(ReduceTest, AllowsOutputsThatAreInputs) {
  for_each_choice([&](ReduceOp op, Form in, Form out) {
    if (in != out) return;
    for (const std::size_t inputs : {1, 2, 4, 6}) {
      const auto question = make_question(dtype(), op, in, out, inputs, kMaxElements);
      for (std::size_t place = 0; place < inputs; ++place) {
        std::vector<Bytes> memory = question->inputs;
        question->reduction.stores = place % 2 == 0 ? Stores::kStreaming : Stores::kCached;
        std::vector<const void*> pointers;
        for (const Bytes& input : memory) pointers.push_back(input.data());
        std::uint8_t* const output = memory[place].data();
        const std::size_t other = (place + 1) % inputs;
        std::uint8_t* const second = other == place ? nullptr : memory[other].data();
        reduce_with(table(), question->reduction,
                    {pointers.data(), inputs, output, second, kMaxElements});
        const std::size_t bytes = kMaxElements * question->out_bytes;
        ASSERT_EQ("", difference(output, question->expected, bytes, question->out_bytes));
        if (second != nullptr) {
          ASSERT_EQ("", difference(second, question->expected, bytes, question->out_bytes));
        }
      }
    }
  });
}

TEST_P(ReduceTest, TouchesOnlyItsBuffers) {
  for_each_choice([&](ReduceOp op, Form in, Form out) {
    for (const std::size_t count : {1, 5, 31, 67, 130, 4999}) {
      const auto question = make_question(dtype(), op, in, out, 2, count);
      question->reduction.stores = Stores::kStreaming;
      for (const bool at_start : {false, true}) {
        FencedBuffer one(count * question->in_bytes, at_start);
        FencedBuffer other(count * question->in_bytes, at_start);
        FencedBuffer output(count * question->out_bytes, at_start);
        std::memcpy(one.data(), question->inputs[0].data(), count * question->in_bytes);
        std::memcpy(other.data(), question->inputs[1].data(), count * question->in_bytes);
        const void* const inputs[] = {one.data(), other.data()};
        reduce_with(table(), question->reduction, {inputs, 2, output.data(), nullptr, count});
        ASSERT_EQ("", difference(output.data(), question->expected, count * question->out_bytes,
                                 question->out_bytes));
      }
    }
  });
}

// Copies during a reduction to one or two outputs: shorter or longer than the output, empty, and to
// locations that are not aligned with the output's lines.
TEST_P(ReduceTest, CopiesDuringAReduction) {
  constexpr std::size_t kCopied = 3;
  for_each_choice([&](ReduceOp op, Form in, Form out) {
    for (const std::size_t inputs : {2, 4, 17}) {
      const std::size_t count = inputs == 2 ? kMaxElements : 700;
      const auto question = make_question(dtype(), op, in, out, inputs, count);
      const std::size_t bytes = count * question->out_bytes;
      for (const Offsets& offsets : kOffsets) {
        for (const std::size_t length : {bytes, bytes / 2 + 1, bytes + 8191, std::size_t{0}}) {
          SCOPED_TRACE(std::to_string(inputs) + " inputs, output at " +
                       std::to_string(offsets.output) + ", copies of " + std::to_string(length));
          std::vector<const void*> from;
          for (const Bytes& input : question->inputs) from.push_back(input.data());
          GuardedBuffer output(bytes, offsets.output);
          GuardedBuffer second(bytes, offsets.inputs);
          const bool has_second = length != bytes + 8191;
          std::vector<std::unique_ptr<GuardedBuffer>> to;
          std::vector<Copy> copies;
          Bytes source(kCopied + length);
          for (std::size_t i = 0; i < source.size(); ++i) {
            source[i] = static_cast<std::uint8_t>(i * 7 + i / 251);
          }
          for (std::size_t c = 0; c < kCopied; ++c) {
            to.push_back(
                std::make_unique<GuardedBuffer>(length, c == 2 ? offsets.inputs : offsets.output));
            copies.push_back({to[c]->data(), source.data() + c, length});
          }
          const std::size_t done = offsets.inputs == 0 ? kCopied : 2;
          reduce_and_copy_with(
              table(), question->reduction,
              {from.data(), inputs, output.data(), has_second ? second.data() : nullptr, count},
              {copies.data(), done});
          ASSERT_EQ("", difference(output.data(), question->expected, bytes, question->out_bytes));
          if (has_second) {
            ASSERT_EQ("",
                      difference(second.data(), question->expected, bytes, question->out_bytes));
          }
          ASSERT_TRUE(output.is_intact() && second.is_intact());
          for (std::size_t c = 0; c < done; ++c) {
            ASSERT_EQ(0, std::memcmp(to[c]->data(), source.data() + c, length));
            ASSERT_TRUE(to[c]->is_intact());
          }
        }
      }
    }
  });
}

// Two levels round once: partials of some inputs, then elements of the partials. (Products and sums
// of integers and small floats are compared with a reference of the same two levels.)
TEST_P(ReduceTest, TwoLevelsMatchTheReference) {
  for (const ReduceOp op : all_ops()) {
    if (!is_reducible(dtype(), op)) continue;
    SCOPED_TRACE(reduce_op_name(op));
    constexpr std::size_t kCount = 517;
    std::vector<Bytes> partials;
    for (const std::size_t inputs : {2, 3}) {
      const auto question =
          make_question(dtype(), op, Form::kElement, Form::kPartial, inputs, kCount);
      partials.push_back(question->expected);
    }
    Reduction last = {.dtype = dtype(), .op = op, .input_form = Form::kPartial, .divisor = 5};
    const Bytes expected = reference_reduce(last, partials, kCount);
    const void* const inputs[] = {partials[0].data(), partials[1].data()};
    Bytes output(kCount * element_bytes(dtype()));
    reduce_with(table(), last, {inputs, 2, output.data(), nullptr, kCount});
    EXPECT_EQ("", difference(output.data(), expected, output.size(), element_bytes(dtype())));
  }
}

std::string param_name(const ::testing::TestParamInfo<Param>& info) {
  return std::string(std::get<0>(info.param)->name) + "_" +
         std::string(dtype_name(std::get<1>(info.param)));
}

INSTANTIATE_TEST_SUITE_P(Kernels, ReduceTest,
                         ::testing::Combine(::testing::ValuesIn(kernel_tables()),
                                            ::testing::ValuesIn(all_dtypes())),
                         param_name);

// The mean of equal values is that value for any number of them.
template <class T>
void expect_mean_of_equals(const KernelTable& table, Dtype dtype, T value) {
  for (std::uint32_t ranks = 1; ranks <= 256; ++ranks) {
    const std::vector<T> each(67, value);
    const std::vector<const void*> inputs(ranks, each.data());
    std::vector<T> mean(each.size());
    const Reduction reduction = {.dtype = dtype, .op = ReduceOp::kAvg, .divisor = ranks};
    reduce_with(table, reduction, {inputs.data(), ranks, mean.data(), nullptr, mean.size()});
    ASSERT_EQ(mean, each) << table.name << " of " << ranks;
  }
}

TEST(ReduceMean, EqualsTheValueForEqualValues) {
  for (const KernelTable* const table : kernel_tables()) {
    expect_mean_of_equals<float>(*table, Dtype::kF32, 1);
    expect_mean_of_equals<double>(*table, Dtype::kF64, 1);
    expect_mean_of_equals<std::complex<float>>(*table, Dtype::kC64, {1, -1});
    expect_mean_of_equals<std::uint16_t>(*table, Dtype::kBf16, 0x3f80);
    expect_mean_of_equals<std::uint16_t>(*table, Dtype::kF16, 0x3c00);
  }
}

TEST(ReduceChoice, UsesTheBestKernelsOfTheMachine) {
  ASSERT_EQ(nullptr, std::getenv("IVY_KERNELS")) << "the test environment sets IVY_KERNELS";
  EXPECT_STREQ(kernel_tables().back()->name, kernel_name());
  const float one[] = {1, 2, 3};
  const float other[] = {10, 20, 30};
  const void* const inputs[] = {one, other};
  float output[3];
  reduce({}, {inputs, 2, output, nullptr, 3});
  EXPECT_EQ(33.0f, output[2]);
}

class ReduceDeathTest : public ::testing::Test {
 protected:
  // Runs each case in a separate process, because the variable is read only once.
  void SetUp() override { ::testing::FLAGS_gtest_death_test_style = "threadsafe"; }
  // Prints the name of the kernels that a process with this variable uses.
  static void choose(const char* wish) {
    ::setenv("IVY_KERNELS", wish, 1);
    std::fprintf(stderr, "uses %s.\n", kernel_name());
    std::_Exit(0);
  }
  float element_ = 1;
  const void* input_ = &element_;
  double factor_ = 2;
};

TEST_F(ReduceDeathTest, TheEnvironmentCanSelectOtherKernels) {
  for (const KernelTable* const table : kernel_tables()) {
    EXPECT_EXIT(choose(table->name), ::testing::ExitedWithCode(0),
                "uses " + std::string(table->name) + "\\.");
  }
  const std::string best = "uses " + std::string(kernel_tables().back()->name) + "\\.";
  EXPECT_EXIT(choose("quantum"), ::testing::ExitedWithCode(0), best);
}

TEST_F(ReduceDeathTest, AssertsItsPreconditions) {
  EXPECT_DEATH(
      reduce({.dtype = Dtype::kF32, .op = ReduceOp::kBand}, {&input_, 1, &element_, nullptr, 1}),
      "is_reducible");
  EXPECT_DEATH(reduce({.op = ReduceOp::kPremulSum}, {&input_, 1, &element_, nullptr, 1}),
               "factors");
  EXPECT_DEATH(reduce({.factors = &factor_}, {&input_, 1, &element_, nullptr, 1}), "factors");
  EXPECT_DEATH(reduce({}, {&input_, 0, &element_, nullptr, 1}), "input_count");
  EXPECT_DEATH(reduce({.op = ReduceOp::kAvg, .divisor = 0}, {&input_, 1, &element_, nullptr, 1}),
               "divisor");
}

}  // namespace
}  // namespace ivy::comm
