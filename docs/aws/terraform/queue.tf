resource "aws_sqs_queue" "interruptions" {
  name                      = local.queue_name
  message_retention_seconds = 300
  sqs_managed_sse_enabled   = true
}

resource "aws_cloudwatch_event_rule" "interruptions" {
  for_each = jsondecode(file("${path.module}/rules.json"))

  name          = "${var.cluster_name}-reconciler-${each.key}"
  event_pattern = jsonencode(each.value)
}

resource "aws_cloudwatch_event_target" "interruptions" {
  for_each = aws_cloudwatch_event_rule.interruptions

  rule = each.value.name
  arn  = aws_sqs_queue.interruptions.arn
}

resource "aws_sqs_queue_policy" "interruptions" {
  queue_url = aws_sqs_queue.interruptions.url

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid       = "RulesMaySend"
        Effect    = "Allow"
        Principal = { Service = "events.amazonaws.com" }
        Action    = "sqs:SendMessage"
        Resource  = aws_sqs_queue.interruptions.arn
        Condition = {
          StringEquals = { "aws:SourceAccount" = local.names.account }
          ArnEquals    = { "aws:SourceArn" = [for rule in aws_cloudwatch_event_rule.interruptions : rule.arn] }
        }
      },
      {
        Sid       = "OnlyServicesSend"
        Effect    = "Deny"
        Principal = "*"
        Action    = "sqs:SendMessage"
        Resource  = aws_sqs_queue.interruptions.arn
        Condition = { Bool = { "aws:PrincipalIsAWSService" = "false" } }
      },
      {
        Sid       = "OnlyOverTls"
        Effect    = "Deny"
        Principal = "*"
        Action    = "sqs:*"
        Resource  = aws_sqs_queue.interruptions.arn
        Condition = { Bool = { "aws:SecureTransport" = "false" } }
      },
    ]
  })
}
