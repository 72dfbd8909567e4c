// verify and the passes: every rule by a schedule that breaks it.
#include <algorithm>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cuboid/core/error.h"
#include "cuboid/parallel/pipeline/generators.h"
#include "cuboid/parallel/pipeline/passes.h"
#include "cuboid/parallel/pipeline/verify.h"

namespace cuboid {
namespace {

using testing::Contains;
using testing::HasSubstr;

// "0F0 0B0 | 1F0 1B0": rows of compute, transfer and reduce cells; '|' ends a row.
Schedule parse(const std::string& text) {
  static const std::vector<std::pair<std::string, ActionKind>> kinds = {{"SEND_F", ActionKind::send_forward},
                                                                        {"RECV_F", ActionKind::recv_forward},
                                                                        {"SEND_B", ActionKind::send_backward},
                                                                        {"RECV_B", ActionKind::recv_backward},
                                                                        {"UNSHARD", ActionKind::unshard},
                                                                        {"RESHARD", ActionKind::reshard},
                                                                        {"REDUCE_GRAD", ActionKind::reduce_gradient},
                                                                        {"STEP", ActionKind::step},
                                                                        {"F", ActionKind::forward},
                                                                        {"B", ActionKind::backward},
                                                                        {"I", ActionKind::input_gradient},
                                                                        {"W", ActionKind::weight_gradient}};
  Schedule schedule{"test", 0, 0, {{}}};
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (word == "|") {
      schedule.rows.emplace_back();
      continue;
    }
    const auto letters = word.find_first_not_of("-0123456789");
    Action action;
    action.stage = letters == 0 ? -1 : std::stoi(word.substr(0, letters));
    for (const auto& [name, kind] : kinds) {
      if (word.compare(letters, name.size(), name) != 0) continue;
      action.kind = kind;
      const std::string rest = word.substr(letters + name.size());
      action.micro_batch = rest.empty() ? -1 : std::stoi(rest);
      break;
    }
    if (computes(action.kind)) {
      schedule.stages = std::max(schedule.stages, action.stage + 1);
      schedule.micro_batches = std::max(schedule.micro_batches, action.micro_batch + 1);
    }
    schedule.rows.back().push_back(action);
  }
  return schedule;
}

std::string row_text(const Schedule& schedule, int rank) {
  std::string text;
  for (const Action& action : schedule.rows[rank]) text += (text.empty() ? "" : " ") + to_string(action);
  return text;
}

std::vector<std::string> faults(const Schedule& schedule, const VerifyOptions& options = {}) {
  std::vector<std::string> texts;
  for (const Finding& finding : verify(schedule, options)) {
    if (!finding.note) texts.push_back(finding.text);
  }
  return texts;
}

std::vector<std::string> faults(const std::string& text, const VerifyOptions& options = {}) {
  return faults(parse(text), options);
}

TEST(Verify, AcceptsValid) {
  EXPECT_THAT(verify(parse("0F0 0F1 0B0 0B1 | 1F0 1B0 1F1 1B1")), testing::IsEmpty());
  EXPECT_THAT(verify(parse("0F0 0I0 0W0 | 1F0 1I0 1W0")), testing::IsEmpty());
  // Stage and micro-batch may mix B with I and W.
  EXPECT_THAT(verify(parse("0F0 0F1 0B0 0I1 0W1")), testing::IsEmpty());
}

TEST(Verify, NamesMissing) {
  EXPECT_THAT(faults("0F0 0F1 0B0 0B1 | 1F0 1B0 1F1"), Contains("rank 1: 1B1 is missing (nor is there 1I1 with 1W1)"));
  EXPECT_THAT(faults("0F0 0F1 0B0 0B1 | 1F0 1B0 1B1"), Contains("rank 1: 1F1 is missing"));
  EXPECT_THAT(faults("0F0 0I0 | 1F0 1B0"), Contains("rank 0: 0I0 stands without 0W0, which is missing"));
  EXPECT_THAT(faults("0F0 0W0 | 1F0 1B0"), Contains("rank 0: 0W0 stands without 0I0, which is missing"));
}

TEST(Verify, NamesTwiceAndForeign) {
  EXPECT_THAT(faults("0F0 0B0 0B0 | 1F0 1B0"), Contains("rank 0: 0B0 stands twice, as actions 1 and 2 of the row"));
  EXPECT_THAT(faults("0F0 0B0 | 1F0 1B0 0F1 0B1"), Contains("stage 0 is on ranks 0 and 1: a stage is on one rank"));
  EXPECT_THAT(faults("0F0 0B0 | 2F0 2B0"), Contains("stage 1 is on no rank"));
  EXPECT_THAT(faults("0F0 0B0 | 1F0 1B0 |"), Contains("rank 2: computes nothing"));
  EXPECT_THAT(faults("0F0 0B0 1RECV_F9"), Contains(HasSubstr("1RECV_F9: there is no stage 1")));
  EXPECT_THAT(faults("0F0 0B0 0RECV_F9"), Contains(HasSubstr("0RECV_F9: there is no micro-batch 9")));
  EXPECT_FALSE(verify(Schedule{"empty", 0, 0, {}}).empty());
  // A cell with large numbers must not make large tables.
  EXPECT_THAT(faults("0F0 0B0 999999999F999999999"),
              testing::ElementsAre("3 actions are too few for 1000000000 stages × 1000000000 micro-batches: most are "
                                   "missing"));
}

TEST(Verify, NamesOrder) {
  EXPECT_THAT(faults("0B0 0F0 | 1F0 1B0"),
              Contains("rank 0: 0B0 stands before its input 0F0 (actions 0 and 1 of the row)"));
  EXPECT_THAT(faults("0F0 0W0 0I0 | 1F0 1B0"), Contains(HasSubstr("0W0 stands before its input 0I0")));
  // Both stages on one rank: the later one's backward comes first.
  EXPECT_THAT(faults("0F0 1F0 0B0 1B0"), Contains(HasSubstr("0B0 stands before its input 1B0")));
  EXPECT_THAT(faults("1F0 0F0 1B0 0B0"), Contains(HasSubstr("1F0 stands before its input 0F0")));
}

TEST(Verify, ExplainsTheDialect) {
  EXPECT_THAT(
      faults("0F0 0B0 0W0"),
      Contains("rank 0: 0W0 stands beside the full backward 0B0: B is the whole backward and already contains W; "
               "in files of 2024 B meant the input gradient only (now I) and BW both"));
  EXPECT_THAT(faults("0F0 0B0 0I0 0W0"), Contains(HasSubstr("0I0 stands beside the full backward 0B0")));
}

TEST(Verify, NamesTheWaitingPair) {
  EXPECT_THAT(faults("0F0 0B0 0F1 0B1 | 1F1 1B1 1F0 1B0"),
              Contains("deadlock: rank 0 waits at 0B0, rank 1 at 1F1 (0B0 needs 1B0 of rank 1; 1F1 needs 0F1 of rank "
                       "0)"));
  // Only the ranks of the cycle are named: rank 0 waits for the pair, but is not part of it.
  const auto found = faults("0F0 0F1 0B0 0B1 | 1F0 1B0 1F1 1B1 | 2F1 2B1 2F0 2B0");
  ASSERT_EQ(found.size(), 1U);
  EXPECT_THAT(found[0], HasSubstr("rank 1 waits at 1B0, rank 2 at 2F1"));
}

TEST(Verify, NotesDescendingWeightGradients) {
  const auto findings = verify(parse("0F0 0F1 0B1 0B0"));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_TRUE(findings[0].note);
  EXPECT_THAT(findings[0].text, HasSubstr("rank 0: 0B0 stands after micro-batch 1"));
  EXPECT_NO_THROW(require_valid(parse("0F0 0F1 0B1 0B0")));
}

TEST(Verify, TransfersOnBothSides) {
  const std::string row0 = "0F0 0SEND_F0 0RECV_B0 0B0 | ";
  EXPECT_THAT(verify(parse(row0 + "1RECV_F0 1F0 1B0 1SEND_B0")), testing::IsEmpty());
  EXPECT_THAT(faults(row0 + "1F0 1B0 1SEND_B0"), Contains("rank 1: 1RECV_F0 is missing"));
  EXPECT_THAT(faults(row0 + "1RECV_F0 1F0 1B0"), Contains("rank 1: 1SEND_B0 is missing"));
  EXPECT_THAT(faults(row0 + "1F0 1RECV_F0 1B0 1SEND_B0"), Contains(HasSubstr("1F0 stands before its input 1RECV_F0")));
  EXPECT_THAT(faults(row0 + "1RECV_F0 1F0 1SEND_B0 1B0"), Contains(HasSubstr("1SEND_B0 stands before its input 1B0")));
  EXPECT_THAT(faults(row0 + "1RECV_F0 1F0 1B0 1SEND_B0 1SEND_F0"),
              Contains("rank 1: 1SEND_F0: the stage has no neighbour on that side"));
  EXPECT_THAT(faults("0F0 0SEND_F0 1RECV_F0 1F0 1B0 0B0"),
              Contains("rank 0: 0SEND_F0: stages 0 and 1 are on one rank, nothing is transferred"));
  EXPECT_THAT(faults(row0 + "1RECV_F0 1F0 1B0 1SEND_B0 1SEND_B0"), Contains(HasSubstr("1SEND_B0 stands twice")));
  EXPECT_THAT(faults("0F0 0SEND_F0 0RECV_B0 0B0 1RECV_F0 | 1F0 1B0 1SEND_B0"),
              Contains("rank 0: 1RECV_F0: stage 1 is on rank 1"));
}

TEST(Verify, RendezvousIsStricterThanBuffered) {
  // 1F1B with each SEND right after its producer and each RECV right before its consumer.
  const Schedule schedule = parse(
      "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1 | 1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1");
  EXPECT_THAT(faults(schedule), Contains(HasSubstr("deadlock: rank 0 waits at 0SEND_F1, rank 1 at 1SEND_B0")));
  EXPECT_THAT(faults(schedule, {SendMode::buffered, {}}), testing::IsEmpty());
}

TEST(Verify, ReductionShardingAndStep) {
  EXPECT_THAT(verify(parse("0UNSHARD 0F0 0B0 0RESHARD 0REDUCE_GRAD STEP")), testing::IsEmpty());
  EXPECT_THAT(faults("0F0 0REDUCE_GRAD 0B0"), Contains("rank 0: 0B0 stands after 0REDUCE_GRAD"));
  EXPECT_THAT(faults("0F0 0B0 0REDUCE_GRAD 0REDUCE_GRAD"), Contains("rank 0: 0REDUCE_GRAD stands twice"));
  EXPECT_THAT(faults("0F0 STEP 0B0"), Contains("rank 0: 0B0 stands after STEP"));
  EXPECT_THAT(faults("0F0 0UNSHARD 0B0"), Contains("rank 0: 0F0 stands where stage 0 is not gathered (UNSHARD)"));
  EXPECT_THAT(faults("0UNSHARD 0F0 0UNSHARD 0B0"), Contains("rank 0: 0UNSHARD: the stage is gathered already"));
  EXPECT_THAT(faults("0F0 0B0 0RESHARD"), Contains("rank 0: 0RESHARD: the stage is not gathered"));
}

TEST(Verify, ActivationCap) {
  const Schedule schedule = make_schedule({"1f1b", 3, 7});
  EXPECT_THAT(peak_activations(schedule), testing::ElementsAre(3, 2, 1));
  EXPECT_THAT(faults(schedule, {SendMode::rendezvous, 3}), testing::IsEmpty());
  EXPECT_THAT(faults(schedule, {SendMode::rendezvous, 2}),
              testing::ElementsAre("rank 0: holds activations of 3 micro-batches, 2 are allowed"));
}

TEST(Verify, OverlapStartsTogether) {
  Schedule schedule = parse("0F0 0F1 0B0 0B1 | 1F0 1B0 1F1 1B1");
  schedule.rows[0][1].overlapped = true;  // 0F1 with 0B0, which needs 1B0: rank 1 can give it
  EXPECT_THAT(verify(schedule), testing::IsEmpty());
  schedule.rows[1][0].overlapped = true;  // 1F0 with 1B0, which needs 1F0
  EXPECT_THAT(faults(schedule), Contains(HasSubstr("1B0 stands before its input 1F0")));
  schedule = parse("0F0 0F1 0B0 0B1");
  schedule.rows[0][0].overlapped = true;
  EXPECT_THAT(faults(schedule), Contains("rank 0: 0F0: only an F overlaps, with the B or I that follows it"));
}

TEST(Verify, RequireValidReportsAllFaults) {
  try {
    require_valid(parse("0F0 0F1 | 1F0 1B0 1F1 1B1"));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::request);
    EXPECT_THAT(error.what(), HasSubstr("--schedule test: rank 0: 0B0 is missing"));
    EXPECT_THAT(error.what(), HasSubstr("--schedule test: rank 0: 0B1 is missing"));
  }
}

TEST(Passes, TransfersOfOneForwardOneBackward) {
  const Schedule schedule = add_transfers(make_schedule({"1f1b", 2, 3}));
  // 1RECV_F1 stands before 1SEND_B0, so that 0SEND_F1 meets it although rank 0 has not reached 0RECV_B0.
  EXPECT_EQ(row_text(schedule, 0), "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0F2 0SEND_F2 0RECV_B1 0B1 0RECV_B2 0B2");
  EXPECT_EQ(row_text(schedule, 1), "1RECV_F0 1F0 1B0 1RECV_F1 1SEND_B0 1F1 1B1 1RECV_F2 1SEND_B1 1F2 1B2 1SEND_B2");
  EXPECT_THAT(verify(schedule), testing::IsEmpty());
}

TEST(Passes, BufferedTransfersStandBesideTheirActions) {
  const Schedule schedule = add_transfers(make_schedule({"1f1b", 2, 2}), SendMode::buffered);
  EXPECT_EQ(row_text(schedule, 0), "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1");
  EXPECT_EQ(row_text(schedule, 1), "1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1");
  EXPECT_THAT(verify(schedule, {SendMode::buffered, {}}), testing::IsEmpty());
}

TEST(Passes, NoTransferInsideARank) {
  // V placement: 1→2 is handed over on rank 1.
  const Schedule schedule = add_transfers(parse("0F0 3F0 3B0 0B0 | 1F0 2F0 2B0 1B0"));
  EXPECT_EQ(row_text(schedule, 0), "0F0 0SEND_F0 3RECV_F0 3F0 3B0 3SEND_B0 0RECV_B0 0B0");
  EXPECT_EQ(row_text(schedule, 1), "1RECV_F0 1F0 2F0 2SEND_F0 2RECV_B0 2B0 1B0 1SEND_B0");
}

TEST(Passes, RefuseWhatCannotRun) {
  EXPECT_THROW(add_transfers(parse("0F0 0B0 0F1 0B1 | 1F1 1B1 1F0 1B0")), Error);
  EXPECT_THROW(add_transfers(add_transfers(make_schedule({"1f1b", 2, 2}))), std::logic_error);
}

TEST(Passes, ReductionAfterTheLastWeightGradient) {
  Schedule schedule = add_step(add_reduction(add_transfers(make_schedule({"gpipe", 2, 2}))));
  EXPECT_EQ(row_text(schedule, 0), "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1 0REDUCE_GRAD STEP");
  EXPECT_EQ(row_text(schedule, 1), "1RECV_F0 1F0 1RECV_F1 1F1 1B0 1SEND_B0 1B1 1SEND_B1 1REDUCE_GRAD STEP");
  EXPECT_THAT(verify(schedule), testing::IsEmpty());
  // The passes commute.
  EXPECT_EQ(add_step(add_transfers(add_reduction(make_schedule({"gpipe", 2, 2})))), schedule);
  EXPECT_EQ(row_text(add_reduction(parse("0F0 0I0 0W0")), 0), "0F0 0I0 0W0 0REDUCE_GRAD");
}

}  // namespace
}  // namespace cuboid
