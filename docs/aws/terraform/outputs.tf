output "plan_role_arn" {
  description = "The role that makes plans."
  value       = aws_iam_role.plan.arn
}

output "run_role_arn" {
  description = "The role that runs the fleet."
  value       = aws_iam_role.run.arn
}

output "queue_url" {
  description = "The queue of interruptions."
  value       = aws_sqs_queue.interruptions.url
}
